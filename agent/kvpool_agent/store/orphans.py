"""Blocks that lie here without their parent: no request can reach them, unless another member holds the parent.

Whether one does is asked now and then, apart from the arena; until it is known such a block counts as reachable.
"""

from collections.abc import Callable, Iterable


class Orphans:
    """Used under the arena's lock. Every call but `all` costs the same, however many there are."""

    def __init__(self) -> None:
        self._open: dict[bytes, None] = {}
        self._proved: dict[bytes, None] = {}
        self._leased: dict[bytes, None] = {}  # proved, and found leased when its turn had come

    @property
    def count(self) -> int:
        """Blocks whose parent nobody holds."""
        return len(self._proved) + len(self._leased)

    def add(self, key: bytes, *, proved: bool) -> None:
        """A block has no parent here; proved: nor could it be reached while its parent was here."""
        (self._proved if proved else self._open)[key] = None

    def discard(self, key: bytes) -> None:
        """The block is gone, or its parent is here again."""
        for kind in (self._open, self._proved, self._leased):
            kind.pop(key, None)

    def judge(self, key: bytes, *, proved: bool) -> None:
        """Whether nobody holds the parent; says nothing about a block that is no orphan any more."""
        if key in self._open or key in self._proved or key in self._leased:
            self.discard(key)
            self.add(key, proved=proved)

    def next(self, leased: Callable[[bytes], bool]) -> bytes | None:
        """The one without a lease whose parent has been known longest to be nowhere."""
        while self._proved:
            key = next(iter(self._proved))
            if not leased(key):
                return key
            del self._proved[key]
            self._leased[key] = None
        return None

    def lease_ended(self, key: bytes) -> None:
        if key in self._leased:
            del self._leased[key]
            self._proved[key] = None

    def all(self) -> Iterable[bytes]:
        return [*self._open, *self._proved, *self._leased]
