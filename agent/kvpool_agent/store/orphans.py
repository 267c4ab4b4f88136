"""Blocks that lie here without their parent: no request can reach them, unless another member holds the parent.

Whether one does is asked now and then, apart from the arena; until it is known such a block counts as reachable.
"""

from collections.abc import Iterable, Iterator


class Orphans:
    """Used under the arena's lock. Every call but `proved` costs the same, however many there are."""

    def __init__(self) -> None:
        self._open: dict[bytes, None] = {}
        self._proved: dict[bytes, None] = {}

    @property
    def count(self) -> int:
        """Blocks whose parent nobody holds."""
        return len(self._proved)

    def add(self, key: bytes, *, proved: bool) -> None:
        """A block has no parent here; proved: nor could it be reached while its parent was here."""
        (self._proved if proved else self._open)[key] = None

    def discard(self, key: bytes) -> None:
        """The block is gone, or its parent is here again."""
        self._open.pop(key, None)
        self._proved.pop(key, None)

    def judge(self, key: bytes, *, proved: bool) -> None:
        """Whether nobody holds the parent; says nothing about a block that is no orphan any more."""
        if key in self._open or key in self._proved:
            self.discard(key)
            self.add(key, proved=proved)

    def proved(self) -> Iterator[bytes]:
        """Those whose parent nobody holds, the longest known first."""
        return iter(self._proved)

    def all(self) -> Iterable[bytes]:
        return [*self._open, *self._proved]
