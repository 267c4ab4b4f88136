"""What an external store has to be able to do, and what can be wrong with one: the one boundary to its client.

Whole objects under names: written at once, so that no reader ever sees a part of one; read in pieces, so that nobody
waits for more than a piece. Every call may take as long as the network does; who calls waits elsewhere (Access).
"""

from collections.abc import Sequence
from typing import Protocol

UNREACHABLE, SLOW, REFUSED = "store_unreachable", "store_slow", "store_refused"
FULL, ERROR, BUSY = "store_full", "store_error", "store_busy"


class StoreError(Exception):
    """The store did not do what it was asked; `word` names why."""

    def __init__(self, word: str, detail: str) -> None:
        super().__init__(f"{word}: {detail}")
        self.word, self.detail = word, detail


class Objects(Protocol):
    """Any thread may call. Every method raises StoreError."""

    def ping(self) -> None:
        """Whether it answers, and lets this agent in."""
        ...

    def held(self, names: Sequence[str]) -> list[bool]:
        """For each name whether there is such an object."""
        ...

    def read(self, name: str, begin: int, length: int) -> bytes:
        """Up to `length` bytes of an object from there on; none where there is no such object."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Puts an object there, for the store's time to live, in place of one that is there."""
        ...

    def renew(self, names: Sequence[str]) -> None:
        """These objects live as long from now on; one that is not there harms nothing."""
        ...

    def remove(self, name: str) -> None:
        """One that is not there harms nothing."""
        ...

    def disconnect(self) -> None:
        """Ends all connections, so that calls which sit on one end; the next call opens another."""
        ...
