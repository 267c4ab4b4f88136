"""How much of a frame is given to the library of TLS at a time."""

import socket
from types import SimpleNamespace

from kvpool_agent.peer import frames, serve
from kvpool_agent.peer.connection import PROGRESS_SECONDS, SENT_BYTES, Connection

BLOCK = memoryview(bytes(5 * SENT_BYTES))


def test_inside_tls_no_more_is_given_away_at_once_than_the_slowest_reader_takes_within_a_timeout() -> None:
    """A timeout goes for all of what the library is given, where in clear it goes for what the kernel takes next."""
    given: list[bytes] = []

    def send(data: memoryview) -> int:
        given.append(bytes(data))
        return len(data)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = Connection(ours)
        sender._secured = SimpleNamespace(send=send)  # type: ignore[assignment]
        block = frames.Block(0, b"t" * 16)
        sender.send(block, BLOCK)
    assert max(map(len, given)) == SENT_BYTES < PROGRESS_SECONDS * serve.LEAST_READ_RATE
    assert b"".join(given) == frames.encode(block, len(BLOCK)) + BLOCK
