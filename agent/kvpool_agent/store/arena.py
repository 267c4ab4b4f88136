"""The arena's index: which block lies in which slot, who may not be evicted, who goes first.

Orphans go first, blocks whose parent nobody holds: no request can reach them. Then the least recently used, leaves
only: a block with a child in the arena stays, since without it the child could not be reached. A slot is free, or
reserved by a writer, or holds a block. A lease keeps a block in its slot until its time is over. Finding a victim costs
the logarithm of the number of blocks: a heap of leaves with entries that are checked when they come up.

Where the memory has slot headers, they follow the index under its lock: a block has one from its publication until
it is evicted or dropped, a free or reserved slot has none.

A block's place in its chain, and so its directory group, follows from its parent's: a step for each block, and none of
the frames that bring blocks has to tell it. A block that came without its parent gets its place from the next whole
chain that contains it (`place`), at the latest when the request that brought it ends.
"""

import heapq
import itertools
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvpool_agent.policy.groups import begins_group
from kvpool_agent.store.feed import Change, Feed
from kvpool_agent.store.headers import SlotHeader
from kvpool_agent.store.heads import Heads, name_of
from kvpool_agent.store.orphans import Orphans
from kvpool_agent.store.table import HeaderTable

NO_PARENT = b""
UNKNOWN = -1


@dataclass
class _Block:
    slot: int
    parent: bytes
    tag: bytes
    foreign: bool
    used: int = 0
    leases: int = 0
    dropped: bool = False
    position: int = UNKNOWN  # in its chain
    head: bytes = b""  # the first block of its directory group; empty while the position is not known


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

    def __init__(
        self,
        slot_count: int,
        table: HeaderTable | None = None,
        *,
        writable_at: float = 0.0,
        unjudged: Iterable[int] = (),
    ) -> None:
        """table: the memory's slot headers. No slot is given to a writer before `writable_at`, nor while one of
        `unjudged`, which an earlier worker may have filled, has not been judged."""
        self.slot_count = slot_count
        self._lock = threading.Lock()
        self._table = table
        self._writable_at = writable_at
        self._unjudged = set(unjudged)
        self._blocks: dict[bytes, _Block] = {}
        self._children: dict[bytes, set[bytes]] = {}
        self._orphans = Orphans()
        self._feed = Feed()
        self.heads = Heads()  # of the blocks without a parent: chains begin there, and windows' blocks lie alone
        self._free = [slot for slot in range(slot_count - 1, -1, -1) if slot not in self._unjudged]
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

    @property
    def orphan_blocks(self) -> int:
        """Blocks whose parent nobody holds, as far as that has been asked."""
        return self._orphans.count

    def orphans(self) -> list[tuple[bytes, bytes]]:
        """(key, parent's key) of the blocks whose parent is not here."""
        with self._lock:
            return [(key, self._blocks[key].parent) for key in self._orphans.all()]

    def run(self, keys: Sequence[bytes]) -> int:
        """How many of the keys are here, from the first on without a gap."""
        with self._lock:
            for i, key in enumerate(keys):
                if key not in self._blocks:
                    return i
            return len(keys)

    def writable(self, now: float) -> bool:
        """Whether slots are given to writers. Until then a predecessor's leases may not be over, or its blocks not
        all be found, and a parent would look like a leaf."""
        return now >= self._writable_at and not self._unjudged

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
        a parent of what is; none before the arena is `writable`."""
        with self._lock:
            if not self.writable(now):
                return []
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
            if self._table is not None:
                self._table.fill(slot, SlotHeader(key, parent, tag, foreign))
            self._add(key, _Block(slot, parent, tag, foreign))
            return True

    def drop(self, key: bytes) -> None:
        """Forgets a block, for example one whose bytes failed their tag; the slot of a leased one is free when its
        leases are over."""
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._remove(key, block)

    # -- the directory's view ------------------------------------------------------------------------

    def place(self, chain: Iterable[bytes]) -> None:
        """A request's whole chain in order: says where the blocks of it that are here belong."""
        head = b""
        with self._lock:
            for position, key in enumerate(chain):
                if begins_group(position):
                    head = key
                block = self._blocks.get(key)
                if block is not None and block.head != head:
                    self._put(key, block, position, head)
                    self._place_below(key)

    def judge_orphan(self, key: bytes, *, held_elsewhere: bool) -> None:
        """Whether another member holds the parent of a block whose parent is not here."""
        with self._lock:
            self._orphans.judge(key, proved=not held_elsewhere)

    def changes(self) -> tuple[list[Change], bool]:
        """What has changed since the last call, and whether that is not all of it."""
        with self._lock:
            return self._feed.take()

    def placed(self) -> list[tuple[bytes, bytes]]:
        """(key, first key of its group) of every block whose group is known."""
        with self._lock:
            return [(key, block.head) for key, block in self._blocks.items() if block.head]

    # -- recovery ------------------------------------------------------------------------------------

    def unjudged(self) -> list[int]:
        return sorted(self._unjudged)

    def judge(self, slot: int, header: SlotHeader | None) -> bool:
        """Makes an unjudged slot the block of its header, whose bytes were checked, or, with None, a free one. False
        when it is free."""
        with self._lock:
            if header is not None and header.key not in self._blocks:
                self._add(header.key, _Block(slot, header.parent, header.tag, header.foreign))
                self._unjudged.discard(slot)
                return True
            if self._table is not None:
                self._table.clear(slot)
            self._free.append(slot)
            self._unjudged.discard(slot)
            return False

    # -- inside the lock -----------------------------------------------------------------------------

    def _add(self, key: bytes, block: _Block) -> None:
        self._blocks[key] = block
        self.foreign += block.foreign
        parent = self._blocks.get(block.parent)
        if block.parent == NO_PARENT:
            self.heads.put(name_of(key))
            self._put(key, block, 0, key)
        else:
            self._children.setdefault(block.parent, set()).add(key)
            if parent is None:
                self._orphans.add(key, proved=False)
            else:
                self._put_below(parent, key, block)
        for child in self._children.get(key, ()):
            self._orphans.discard(child)
        self._place_below(key)
        self._touch(key, block)

    def _place_below(self, key: bytes) -> None:
        """Gives the descendants of a block that have no place yet theirs; each block gets one once."""
        waiting = [key]
        while waiting:
            parent = waiting.pop()
            for child in self._children.get(parent, ()):
                if self._put_below(self._blocks[parent], child, self._blocks[child]):
                    waiting.append(child)

    def _put_below(self, parent: _Block, key: bytes, block: _Block) -> bool:
        """Gives a block its place behind its parent, where that has one and the block none."""
        if parent.position == UNKNOWN or block.position != UNKNOWN:
            return False
        position = parent.position + 1
        self._put(key, block, position, key if begins_group(position) else parent.head)
        return True

    def _put(self, key: bytes, block: _Block, position: int, head: bytes) -> None:
        if block.head:
            self._feed.add(Change(key, block.head, held=False))
        block.position, block.head = position, head
        self._feed.add(Change(key, head, held=True))

    def _touch(self, key: bytes, block: _Block) -> None:
        block.used = next(self._clock)
        if not self._children.get(key):
            heapq.heappush(self._heap, (block.used, key))
            if len(self._heap) > 4 * len(self._blocks) + 64:
                self._heap = [(b.used, k) for k, b in self._blocks.items() if not self._children.get(k)]
                heapq.heapify(self._heap)

    def _evict_one(self) -> bool:
        orphan = next((key for key in self._orphans.proved() if not self._blocks[key].leases), None)
        if orphan is not None:
            # what hangs below it can be reached as little
            self._remove(orphan, self._blocks[orphan], reachable=False)
            self.evicted += 1
            return True
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

    def _remove(self, key: bytes, block: _Block, *, reachable: bool = True) -> None:
        del self._blocks[key]
        if self._table is not None:
            self._table.clear(block.slot)
        self.foreign -= block.foreign
        if block.leases:
            block.dropped = True
        else:
            self._free.append(block.slot)
        if block.head:
            self._feed.add(Change(key, block.head, held=False))
        self._orphans.discard(key)
        for child in self._children.get(key, ()):
            if child in self._blocks:  # what says that it is its own parent is not
                self._orphans.add(child, proved=not reachable)
        if block.parent != NO_PARENT:
            siblings = self._children[block.parent]
            siblings.discard(key)
            if not siblings:
                del self._children[block.parent]
                parent = self._blocks.get(block.parent)
                if parent is not None:
                    heapq.heappush(self._heap, (parent.used, block.parent))
        else:
            self.heads.take(name_of(key))

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
