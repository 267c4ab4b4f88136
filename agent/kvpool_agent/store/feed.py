"""What has changed in the arena since somebody last asked, for announcements: bounded, and honest about its bound."""

import collections
from dataclasses import dataclass

FEED_CHANGES = 65_536


@dataclass(frozen=True)
class Change:
    """A block of the group that begins with `head` is here now, or is not any more."""

    key: bytes
    head: bytes
    held: bool


class Feed:
    """Written under the arena's lock, as it is read."""

    def __init__(self, limit: int = FEED_CHANGES) -> None:
        self._changes: collections.deque[Change] = collections.deque()
        self._limit = limit
        self._lost = False

    def add(self, change: Change) -> None:
        if len(self._changes) >= self._limit:
            self._changes.clear()
            self._lost = True
        self._changes.append(change)

    def take(self) -> tuple[list[Change], bool]:
        """The changes in their order, and whether some were lost: then what is here must be looked through."""
        found, lost = list(self._changes), self._lost
        self._changes.clear()
        self._lost = False
        return found, lost
