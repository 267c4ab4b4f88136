"""Which of its own blocks an arena has given up for copies of others': some of the latest, to see which come again."""

import collections
from collections.abc import Iterable

KEPT = 16_384


class Displaced:
    """Called under the arena's lock."""

    def __init__(self) -> None:
        self._keys: collections.OrderedDict[bytes, None] = collections.OrderedDict()

    def note(self, key: bytes) -> None:
        self._keys[key] = None
        if len(self._keys) > KEPT:
            self._keys.popitem(last=False)

    def take(self, keys: Iterable[bytes]) -> int:
        """How many of these it gave up; they are counted once."""
        if not self._keys:
            return 0
        return sum(self._keys.pop(key, key) is None for key in keys)
