"""A member that asks another one without pause, as a process of its own: PORT FINGERPRINT CONNECTIONS [IDENTITY]. It
prints a line once every connection has been answered once, and goes on until it is killed. IDENTITY: the folder of its
certificate, with which it talks inside TLS."""

import socket
import sys
import threading
from pathlib import Path

from kvpool_agent.identity.credentials import read_credentials
from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import Connection
from kvpool_agent.peer.tls import CLEAR, Tls, Transport
from kvpool_contract.identity import AUTHORITIES_FILE, CERTIFICATE_FILE, KEY_FILE, CertificateName

KEYS = b"".join(bytes([n % 256, n // 256]) * 8 for n in range(frames.MAX_KEYS))
ELSEWHERE, SECONDS = "127.0.0.9", 60.0
UNGREETED = (
    8  # at a time: a member refuses the rest of one address beyond twice as many, and on a busy machine greets late
)
POOL = "demo"  # and its cluster and Kubernetes namespace, see examples/demo/authority.py


def transport(folder: str) -> Transport:
    if not folder:
        return CLEAR
    certificate, key, authorities = (
        Path(folder, name).read_bytes() for name in (CERTIFICATE_FILE, KEY_FILE, AUTHORITIES_FILE)
    )
    own = read_credentials(certificate, key, authorities)
    return Tls(lambda: own, CertificateName(POOL, POOL, POOL))


def greeted(port: int, way: Transport) -> Connection:
    sock = socket.create_connection(("127.0.0.1", port), timeout=SECONDS, source_address=(ELSEWHERE, 0))
    connection = Connection(sock)
    way.dialed(connection, f"127.0.0.1:{port}", SECONDS)
    connection.settimeout(SECONDS)
    connection.send(frames.Hello(list(frames.VERSIONS), POOL, "flood-uid", "inc"))
    connection.receive()
    return connection


def flood(
    port: int, fingerprint: bytes, answered: threading.Barrier, ungreeted: threading.Semaphore, way: Transport
) -> None:
    with ungreeted:
        connection = greeted(port, way)
    first = True
    while True:
        connection.send(frames.Locate(fingerprint), KEYS)
        _, length = connection.receive()
        connection.skip(length)
        if first:
            answered.wait()
            first = False


def main() -> None:
    port, fingerprint, connections = int(sys.argv[1]), bytes.fromhex(sys.argv[2]), int(sys.argv[3])
    answered, way = threading.Barrier(connections + 1), transport(sys.argv[4] if len(sys.argv) > 4 else "")
    ungreeted = threading.Semaphore(UNGREETED)
    for _ in range(connections):
        threading.Thread(target=flood, args=(port, fingerprint, answered, ungreeted, way), daemon=True).start()
    answered.wait(SECONDS)
    print("flooding", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
