"""TLS for the transfer benchmark: an authority made on the spot, both ends' contexts, and what handshakes cost."""

import collections
import os
import socket
import ssl
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples" / "demo"))

from authority import CLUSTER, K8S_NAMESPACE, Authority, member_uri

from kvpool_agent.identity.credentials import read_credentials
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.peer.tls import Tls
from kvpool_contract.identity import CertificateName

POOL = "benchmark"


@dataclass(frozen=True)
class Pair:
    """PEM of one end: certificate, key, authorities."""

    certificate: bytes
    key: bytes
    authorities: bytes

    def transport(self, count: Callable[[str], None] = lambda _word: None, pool: str = POOL) -> Tls:
        own = read_credentials(self.certificate, self.key, self.authorities)
        return Tls(lambda: own, CertificateName(CLUSTER, K8S_NAMESPACE, pool), count)

    def context(self, protocol: int) -> ssl.SSLContext:
        """A plain one with the same demands: TLS 1.3, certificates on both sides."""
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.authorities.decode())
        descriptor = os.memfd_create("pair")
        os.write(descriptor, self.certificate + self.key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        os.close(descriptor)
        return context


def pairs(*members: str, pool: str = POOL) -> list[Pair]:
    authority = Authority()
    return [Pair(*authority.leaf(member_uri(pool, member)), authority.certificate) for member in members]


def accept(pair: Pair) -> Callable[[socket.socket], socket.socket]:
    context = pair.context(ssl.PROTOCOL_TLS_SERVER)
    return lambda sock: context.wrap_socket(sock, server_side=True)


def connect(pair: Pair, port: int) -> socket.socket:
    return pair.context(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(socket.create_connection(("127.0.0.1", port)))


def handshakes(pair: Pair, port: int, count: int, cpu_seconds: Callable[[], float]) -> None:
    """Prints what a new connection to a member costs until its welcome: with all of the handshake, at an address that
    was never dialled, and resumed. cpu_seconds: of both ends, so far."""
    counts: collections.Counter[str] = collections.Counter()

    def note(word: str) -> None:
        counts[word] += 1

    dialer = Dialer(Identity(POOL, "sink", "1"), pair.transport(note))
    dialer.handshake(f"127.0.0.1:{port}")[0].close()
    for name in ("whole", "resumed"):
        taken, before = [], cpu_seconds()
        for n in range(count):
            address = f"127.1.{n // 250}.{n % 250 + 1}" if name == "whole" else "127.0.0.1"
            began = time.perf_counter()
            connection, _ = dialer.handshake(f"{address}:{port}")
            taken.append(time.perf_counter() - began)
            connection.close()
        used = (cpu_seconds() - before) / count
        print(f"handshake, {name:8} {1000 * statistics.median(taken):6.2f} ms, {1000 * used:6.2f} CPU-ms of both ends")
    print(f"{counts['tls_resumed']} of {count} went on with an earlier session", flush=True)
