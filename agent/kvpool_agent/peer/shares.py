"""What one member may take of another one's peer port at a time, so that who floods it stops nobody else.

Bounds over all members keep the process alive; they don't keep its places from being taken by one. So a member has a
part of the connections, and of what is being answered at any time; the rest of its requests wait in its own
connections. Before a connection has said who it is, its address stands for it.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CONNECTIONS = 64  # of one member: those of its fetches, of its plans' questions and some idle ones
HANDSHAKES = 16  # of one address, at a time
NEW_PER_SECOND, NEW_AT_ONCE = 100.0, 500  # connections of one address
ANSWERED = 4  # requests of one member that are being answered; a stream's bytes are bounded elsewhere
TURN_SECONDS = 10.0
MAX_ADDRESSES = 1024  # whose new connections are remembered


class Shares:
    """Any thread may call."""

    def __init__(self, count: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Counts `bound_member_connections`, `bound_member_requests`, `bound_address_handshakes` and
        `bound_address_rate`."""
        self._count, self._clock = count, clock
        self._changed = threading.Condition()
        self._greeting: Counter[str] = Counter()  # by address
        self._connected: Counter[str] = Counter()  # by member
        self._answering: Counter[str] = Counter()
        self._new: dict[str, tuple[float, float]] = {}  # by address: connections that it may open, as of when

    def begins(self, address: str) -> bool:
        """Whether a connection from this address may begin; then `greeted` must follow."""
        with self._changed:
            if self._greeting[address] >= HANDSHAKES:
                self._count("bound_address_handshakes")
                return False
            if not self._may_be_new(address):
                self._count("bound_address_rate")
                return False
            self._greeting[address] += 1
            return True

    def greeted(self, address: str) -> None:
        """Its handshake is over, well or not."""
        with self._changed:
            _less(self._greeting, address)

    @contextmanager
    def connected(self, member: str) -> Iterator[bool]:
        """Whether the member may have one connection more, until the context ends."""
        with self._changed:
            found = self._connected[member] < CONNECTIONS
            if found:
                self._connected[member] += 1
        if not found:
            self._count("bound_member_connections")
        try:
            yield found
        finally:
            if found:
                with self._changed:
                    _less(self._connected, member)

    @contextmanager
    def turn(self, member: str) -> Iterator[bool]:
        """Whether the member's request may be answered now; it is waited for while others of the same member are."""
        with self._changed:
            found = self._answering[member] < ANSWERED
            if not found:
                self._count("bound_member_requests")
                found = self._changed.wait_for(lambda: self._answering[member] < ANSWERED, TURN_SECONDS)
            if found:
                self._answering[member] += 1
        try:
            yield found
        finally:
            if found:
                with self._changed:
                    _less(self._answering, member)
                    self._changed.notify_all()

    def _may_be_new(self, address: str) -> bool:
        now = self._clock()
        left, since = self._new.pop(address, (float(NEW_AT_ONCE), now))
        left = min(NEW_AT_ONCE, left + (now - since) * NEW_PER_SECOND)
        while len(self._new) >= MAX_ADDRESSES:
            self._new.pop(next(iter(self._new)))  # the one that has been quiet the longest
        self._new[address] = left - 1 if left >= 1 else left, now
        return left >= 1


def _less(counts: "Counter[str]", name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
