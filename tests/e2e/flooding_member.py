"""A member that asks another one without pause, as a process of its own: PORT FINGERPRINT CONNECTIONS. It prints a line
once every connection has been answered once, and goes on until it is killed."""

import socket
import sys
import threading

from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import Connection

KEYS = b"".join(bytes([n % 256, n // 256]) * 8 for n in range(frames.MAX_KEYS))
ELSEWHERE, SECONDS = "127.0.0.9", 60.0


def flood(port: int, fingerprint: bytes, answered: threading.Barrier) -> None:
    sock = socket.create_connection(("127.0.0.1", port), timeout=SECONDS, source_address=(ELSEWHERE, 0))
    connection = Connection(sock)
    connection.settimeout(SECONDS)
    connection.send(frames.Hello(list(frames.VERSIONS), "demo", "flood", "inc"))
    connection.receive()
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
    answered = threading.Barrier(connections + 1)
    for _ in range(connections):
        threading.Thread(target=flood, args=(port, fingerprint, answered), daemon=True).start()
    answered.wait(SECONDS)
    print("flooding", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
