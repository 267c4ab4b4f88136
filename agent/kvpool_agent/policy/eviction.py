"""Which block goes next: policies behind one interface, for the arena, for replay and for estimates alike.

A policy knows keys alone. It is told when a block comes, is asked for, and goes, and which blocks may be evicted at
all: one that somebody reads, or that another kept block hangs on, is bound. How many blocks there are does not change
what a call costs, but for a logarithm.
"""

import heapq
import itertools
from collections.abc import Hashable
from typing import Any, Generic, Protocol, TypeVar

from kvpool_agent.policy.s3fifo import S3Fifo
from kvpool_contract.config import GDSF, LRU, S3FIFO

FREQUENCY_CAP = 4

K = TypeVar("K", bound=Hashable)


class Policy(Protocol[K]):
    """The blocks of one class. Every call but `next` is of a block that has come and has not gone."""

    def __len__(self) -> int: ...

    def come(self, key: K) -> None:
        """A block is here now, bound, and no request has counted for it yet."""

    def use(self, key: K) -> None:
        """One request contained the block."""

    def touch(self, key: K) -> None:
        """The block was asked for, by a request that counts, or has counted, once: it is fresh."""

    def bind(self, key: K) -> None:
        """The block may not be evicted until it is freed."""

    def free(self, key: K) -> None:
        """The block may be evicted."""

    def go(self, key: K, *, evicted: bool) -> None:
        """The block has gone: because `next` named it, or for another reason."""

    def next(self) -> K | None:
        """The free block that goes next; it stays until `go`. None when all are bound."""


class _Ranked:
    __slots__ = ("free", "key", "queued", "rank", "used", "uses")

    def __init__(self, key: Hashable, rank: float, used: int) -> None:
        self.key, self.rank, self.used = key, rank, used
        self.uses = 0
        self.free = self.queued = False


class Ranked(Generic[K]):
    """LRU, and GDSF for blocks of one size and cost: the lowest rank goes first, among equals the one not used for
    longest. A block's rank is the last victim's, plus how many requests contained it, up to a cap: without a cap the
    blocks of sessions that have ended stay for their past. Cap 0 is LRU.

    A heap holds a free block once, with the rank that it had when it was pushed. Ranks only grow: an entry whose
    block has a higher one by now is pushed again when it comes up, so a use costs nothing but itself.
    """

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._clock = 0.0
        self._uses = itertools.count(1)
        self._entries: dict[K, _Ranked] = {}
        self._heap: list[tuple[float, int, _Ranked]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def come(self, key: K) -> None:
        self._entries[key] = _Ranked(key, self._clock + min(1, self._cap), next(self._uses))

    def use(self, key: K) -> None:
        entry = self._entries[key]
        entry.uses += 1
        self._refresh(entry)

    def touch(self, key: K) -> None:
        self._refresh(self._entries[key])

    def bind(self, key: K) -> None:
        self._entries[key].free = False

    def free(self, key: K) -> None:
        entry = self._entries[key]
        entry.free = True
        if not entry.queued:
            self._push(entry)

    def go(self, key: K, *, evicted: bool) -> None:
        entry = self._entries.pop(key)
        entry.free = False
        if evicted:
            self._clock = max(self._clock, entry.rank)
        if len(self._heap) > 2 * len(self._entries) + 64:  # blocks that went otherwise than by `next`
            self._heap = [each for each in self._heap if each[2].free]
            heapq.heapify(self._heap)
            for entry in self._entries.values():
                entry.queued = entry.free

    def next(self) -> K | None:
        heap = self._heap
        while heap:
            _, used, entry = heap[0]
            if entry.free and entry.used == used:
                return entry.key  # type: ignore[return-value]
            heapq.heappop(heap)
            entry.queued = False
            if entry.free:
                self._push(entry)
        return None

    def _refresh(self, entry: _Ranked) -> None:
        entry.rank = self._clock + min(max(1, entry.uses), self._cap)
        entry.used = next(self._uses)

    def _push(self, entry: _Ranked) -> None:
        entry.queued = True
        heapq.heappush(self._heap, (entry.rank, entry.used, entry))


def policy_of(name: str) -> Policy[Any]:
    """A new policy by the name that pools call it."""
    if name == S3FIFO:
        return S3Fifo()
    return Ranked({GDSF: FREQUENCY_CAP, LRU: 0}[name])
