"""Leases: blocks that stay in their slots until a time is over. Used under the arena's lock."""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvpool_agent.store.index import Block


@dataclass
class _Lease:
    blocks: Sequence[Block]
    expires: float


class Leases:
    """Times in seconds of one monotonic clock. `ended` is called for a block when its last lease has ended."""

    def __init__(self, ended: Callable[[Block], None]) -> None:
        self.blocks = 0  # leased now
        self._ended = ended
        self._numbers = itertools.count(1)
        self._leases: dict[int, _Lease] = {}
        self._ends: list[tuple[float, int]] = []

    def begin(self, blocks: Sequence[Block], until: float) -> int:
        """The number of a new lease; a block that stands here twice is leased twice."""
        for block in blocks:
            self.blocks += not block.leases
            block.leases += 1
        number = next(self._numbers)
        self._leases[number] = _Lease(blocks, until)
        heapq.heappush(self._ends, (until, number))
        return number

    def renew(self, number: int, until: float) -> bool:
        """False when it is over already."""
        lease = self._leases.get(number)
        if lease is None:
            return False
        lease.expires = until
        heapq.heappush(self._ends, (until, number))
        return True

    def expire(self, now: float) -> None:
        """Ends those whose time is over."""
        while self._ends and self._ends[0][0] <= now:
            _, number = heapq.heappop(self._ends)
            lease = self._leases.get(number)
            if lease is not None and lease.expires <= now:
                self.end(number)

    def end(self, number: int) -> None:
        """Ends a lease; one that is over, or never was, harms nothing."""
        lease = self._leases.pop(number, None)
        for block in lease.blocks if lease is not None else ():
            block.leases -= 1
            if not block.leases:
                self.blocks -= 1
                self._ended(block)
