"""The arena's index: which block lies in which slot, who may not be evicted, who goes first.

Least recently used goes first, leaves only: a block with a child in the arena stays, since without it the child
could not be reached. A slot is free, or reserved by a writer, or holds a block. A lease keeps a block in its slot
until its time is over. Finding a victim costs the logarithm of the number of blocks: a heap of leaves with entries
that are checked when they come up.
"""

import heapq
import itertools
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NO_PARENT = b""


@dataclass
class _Block:
    slot: int
    parent: bytes
    tag: bytes
    foreign: bool
    used: int = 0
    leases: int = 0
    dropped: bool = False


@dataclass
class _Lease:
    blocks: Sequence[_Block]
    expires: float = 0.0


@dataclass(frozen=True)
class Held:
    """Where a block lies and what its bytes must hash to."""

    key: bytes
    slot: int
    tag: bytes
    parent: bytes
    foreign: bool


class Arena:
    """Slots 0 … slot_count − 1. Times in seconds of one monotonic clock."""

    def __init__(self, slot_count: int) -> None:
        self.slot_count = slot_count
        self._lock = threading.Lock()
        self._blocks: dict[bytes, _Block] = {}
        self._children: dict[bytes, int] = {}
        self._free = list(range(slot_count - 1, -1, -1))
        self._heap: list[tuple[int, bytes]] = []
        self._clock = itertools.count(1)
        self._lease_numbers = itertools.count(1)
        self._leases: dict[int, _Lease] = {}
        self._lease_ends: list[tuple[float, int]] = []
        self.evicted = 0
        self.foreign = 0

    # -- reading -------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def used_slots(self) -> int:
        return self.slot_count - len(self._free)

    def held(self, keys: Iterable[bytes]) -> list[bool]:
        """For each key whether it is here."""
        with self._lock:
            return [key in self._blocks for key in keys]

    def keys(self) -> list[bytes]:
        with self._lock:
            return list(self._blocks)

    def run(self, keys: Sequence[bytes]) -> int:
        """How many of the keys are here, from the first on without a gap."""
        with self._lock:
            for i, key in enumerate(keys):
                if key not in self._blocks:
                    return i
            return len(keys)

    # -- leases --------------------------------------------------------------------------------------

    def lease(self, keys: Sequence[bytes], now: float, seconds: float) -> tuple[int, list[Held | None]]:
        """Keeps the blocks that are here in their slots until `now + seconds`; marks them and nothing else as used.

        Returns the lease's number and, for each key, where it lies or None.
        """
        with self._lock:
            self._expire(now)
            found: list[Held | None] = []
            kept = []
            for key in keys:
                block = self._blocks.get(key)
                if block is None:
                    found.append(None)
                    continue
                block.leases += 1
                self._touch(key, block)
                kept.append(block)
                found.append(Held(key, block.slot, block.tag, block.parent, block.foreign))
            number = next(self._lease_numbers)
            self._leases[number] = _Lease(kept, now + seconds)
            heapq.heappush(self._lease_ends, (now + seconds, number))
            return number, found

    def renew(self, lease: int, now: float, seconds: float) -> bool:
        """Gives a lease more time; False when it is over already."""
        with self._lock:
            self._expire(now)
            entry = self._leases.get(lease)
            if entry is None:
                return False
            entry.expires = now + seconds
            heapq.heappush(self._lease_ends, (entry.expires, lease))
            return True

    def release(self, lease: int) -> None:
        with self._lock:
            self._end_lease(lease)

    # -- writing -------------------------------------------------------------------------------------

    def reserve(self, count: int, now: float) -> list[int]:
        """Up to `count` slots to write into, by evicting what may be; fewer when everything is leased or in use as
        a parent of what is."""
        with self._lock:
            self._expire(now)
            slots: list[int] = []
            while len(slots) < count and (self._free or self._evict_one()):
                slots.append(self._free.pop())
            return slots

    def give_back(self, slots: Iterable[int]) -> None:
        """Frees reserved slots that were not filled."""
        with self._lock:
            self._free.extend(slots)

    def commit(self, key: bytes, parent: bytes, slot: int, tag: bytes, *, foreign: bool) -> bool:
        """Publishes a filled slot as a block. False, and the slot is free again, when the block is here already."""
        with self._lock:
            if key in self._blocks:
                self._free.append(slot)
                return False
            block = _Block(slot, parent, tag, foreign)
            self._blocks[key] = block
            self.foreign += foreign
            if parent != NO_PARENT:
                self._children[parent] = self._children.get(parent, 0) + 1
            self._touch(key, block)
            return True

    def drop(self, key: bytes) -> None:
        """Forgets a block, for example one whose bytes failed their tag; the slot of a leased one is free when its
        leases are over."""
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._remove(key, block)

    # -- inside the lock -----------------------------------------------------------------------------

    def _touch(self, key: bytes, block: _Block) -> None:
        block.used = next(self._clock)
        if not self._children.get(key):
            heapq.heappush(self._heap, (block.used, key))
            if len(self._heap) > 4 * len(self._blocks) + 64:
                self._heap = [(b.used, k) for k, b in self._blocks.items() if not self._children.get(k)]
                heapq.heapify(self._heap)

    def _evict_one(self) -> bool:
        leased = []
        evicted = False
        while self._heap:
            used, key = heapq.heappop(self._heap)
            block = self._blocks.get(key)
            if block is None or block.used != used or self._children.get(key):
                continue
            if block.leases:
                leased.append((used, key))
                continue
            self._remove(key, block)
            self.evicted += 1
            evicted = True
            break
        for entry in leased:
            heapq.heappush(self._heap, entry)
        return evicted

    def _remove(self, key: bytes, block: _Block) -> None:
        del self._blocks[key]
        self.foreign -= block.foreign
        if block.leases:
            block.dropped = True
        else:
            self._free.append(block.slot)
        if block.parent != NO_PARENT:
            left = self._children[block.parent] - 1
            if left:
                self._children[block.parent] = left
            else:
                del self._children[block.parent]
                parent = self._blocks.get(block.parent)
                if parent is not None:
                    heapq.heappush(self._heap, (parent.used, block.parent))

    def _expire(self, now: float) -> None:
        while self._lease_ends and self._lease_ends[0][0] <= now:
            _, number = heapq.heappop(self._lease_ends)
            entry = self._leases.get(number)
            if entry is not None and entry.expires <= now:
                self._end_lease(number)

    def _end_lease(self, number: int) -> None:
        entry = self._leases.pop(number, None)
        if entry is None:
            return
        for block in entry.blocks:
            block.leases -= 1
            if block.dropped and not block.leases:
                self._free.append(block.slot)
