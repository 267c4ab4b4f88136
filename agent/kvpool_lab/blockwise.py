"""S3-FIFO as it is published, one block at a time: what the pool's S3FIFO is measured against, no policy for an arena.

A request's blocks are taken from the end of its prompt to the beginning, as each was an object of its own: what it
lacks comes into the small queue, of a tenth of the blocks, or into the main one where it is remembered to have left the
small one; and whoever is at the head of a queue goes, also one that others hang on, and also the end of the very prompt
that is taken in. A block that one more request contained while it was in the small queue goes on to the main one. So a
long prompt of a session that comes once leaves its beginning in the small queue and takes nothing from the main one. An
arena can't do that: bytes that an engine hands over lie in slots, parents before children, before it is known whether
they fit; blocks whose parent is gone serve nobody.
"""

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

SMALL_PART = 0.1
ROUNDS = 3

K = TypeVar("K", bound=Hashable)


class BlockwiseS3Fifo(Generic[K]):
    """`capacity` in blocks."""

    def __init__(self, capacity: int) -> None:
        self.evicted = 0
        self._capacity, self._most = capacity, max(1, int(capacity * SMALL_PART))
        self._uses: dict[K, int] = {}
        self._small: deque[K] = deque()
        self._main: deque[K] = deque()
        self._left: OrderedDict[K, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._uses)

    def request(self, chain: Sequence[K]) -> int:
        """How many of the blocks were held, up to the first gap."""
        uses = self._uses
        hits = next((i for i, key in enumerate(chain) if key not in uses), len(chain))
        for key in reversed(chain):
            if key in uses:
                uses[key] = min(uses[key] + 1, ROUNDS)
                continue
            if len(uses) >= self._capacity:
                self._evict_one()
            (self._main if self._left.pop(key, self) is None else self._small).append(key)
            uses[key] = 0
        return hits

    def _evict_one(self) -> None:
        self.evicted += 1
        uses = self._uses
        while True:
            if len(self._small) >= self._most or not self._main:
                while self._small:
                    key = self._small.popleft()
                    if not uses[key]:
                        del uses[key]
                        self._remember(key)
                        return
                    uses[key] = 0
                    self._main.append(key)
            while self._main:
                key = self._main.popleft()
                if not uses[key]:
                    del uses[key]
                    return
                uses[key] -= 1
                self._main.append(key)

    def _remember(self, key: K) -> None:
        self._left[key] = None
        while len(self._left) > self._capacity - self._most:
            self._left.popitem(last=False)
