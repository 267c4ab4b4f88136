"""Where an agent connects to: the places that its configuration names and members, whatever a member that lies says of
others; and what a place hears that is no member's."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_pool import PATIENT, AgentPool
from bad_peer import BadPeer
from replica import wait_for
from signer import Signer, managed
from trusted import NAME, transport

from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import PeerError
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_contract.identity import ALPN

WAIT = 20.0
FAR = "192.0.2.7"  # of nobody: the network of examples
# of each connection that a process of the agent begins the address is written down, and none leaves this machine
WATCHED = """
import os, sys
def watch(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host, port = arguments[1][:2]
        descriptor = os.open({file!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(descriptor, f"{{host}} {{port}}\\n".encode())
        os.close(descriptor)
        if host not in ("127.0.0.1", "::1"):
            raise OSError("no network in this test")
sys.addaudithook(watch)
"""


class Ear:
    """Listens, says nothing, and keeps what it hears."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self.address = f"127.0.0.1:{self.port}"
        self.heard: list[bytes] = []
        self.ended = 0
        threading.Thread(target=self._run, name="ear", daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                taken, _ = self._socket.accept()
                self.heard.append(b"")
                with taken, contextlib.suppress(OSError):
                    while part := taken.recv(4096):
                        self.heard[-1] += part
                self.ended += 1

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def ear() -> Iterator[Ear]:
    with contextlib.closing(Ear()) as made:
        yield made


def test_an_agent_connects_to_places_of_its_configuration_and_to_members_alone(
    pool: AgentPool, signer: Signer, ear: Ear, tmp_path: Path
) -> None:
    connects = tmp_path / "connects"
    a = managed(pool, signer, "a").patched(PATIENT + WATCHED.format(file=str(connects)))

    def seen() -> list[str]:
        return connects.read_text().splitlines() if connects.exists() else []

    with contextlib.closing(Ear()) as store, contextlib.closing(BadPeer("", pool.pool, "liar-uid")) as liar:
        told = [
            ear.address, f"127.0.0.2:{liar.port}", f"[::ffff:127.0.0.1]:{ear.port}", "169.254.169.254:80",
            f"169.254.169.254:{liar.port}", f"a.name:{liar.port}", f"{FAR}:80", f"{FAR}:{liar.port}",
        ]  # fmt: skip
        members = [(address, f"uid-{n}") for n, address in enumerate(told)]
        greeting = liar.welcome(frames.DIRECTORY_VERSION)
        liar.answers[frames.Hello] = liar.answers[frames.Ping] = lambda _, sock, *__: sock.sendall(greeting)
        liar.answers[frames.Renew] = lambda _, sock, *__: sock.sendall(frames.encode(frames.Renewed(1, members)))
        a.replica.config |= {
            "members": {"dns": f"localhost:{liar.port}"},
            "store": {"type": "Valkey", "url": f"valkey://127.0.0.1:{store.port}", "prefix": "kv/"},
        }
        a.start().attach()
        # what is told after the others, and can be a pod's, is dialled every second: by then the others would have been
        wait_for("the last one is dialled twice", lambda: seen().count(f"{FAR} {liar.port}") >= 2, WAIT, 0.05)
        named = {liar.port, signer.port, store.port, a.replica.engine_port}
        wait_for("all are", lambda: {int(line.split()[1]) for line in seen()} >= named, WAIT, 0.05)
        found = set(seen()) - {f"::1 {port}" for port in (liar.port, signer.port)}
        assert found == {f"127.0.0.1 {port}" for port in named} | {f"{FAR} {liar.port}"}
    assert ear.heard == []


@pytest.mark.parametrize("tls", [True, False], ids=["inside TLS", "in clear"])
def test_a_place_that_is_no_members_hears_how_a_connection_begins_and_nothing_else(
    tmp_path: Path, ear: Ear, tls: bool
) -> None:
    pool = AgentPool(tmp_path, tls=tls)
    dialer = Dialer(Identity(NAME, "a-uid", "inc"), transport(pool.pool, "a-uid"))
    with pytest.raises(PeerError, match="timed out"):
        dialer.handshake(ear.address, 0.5)
    wait_for("it has ended", lambda: ear.ended, WAIT, 0.01)
    (heard,) = ear.heard
    if not tls:
        assert heard == frames.encode(frames.Hello(list(frames.VERSIONS), NAME, "a-uid", "inc"))
        return
    handshake, client_hello, head = 22, 1, 5
    assert (heard[0], heard[head]) == (handshake, client_hello)
    assert len(heard) == head + int.from_bytes(heard[3:head], "big")
    assert ALPN.encode() in heard and b"a-uid" not in heard
