"""The arena: which block lies in which slot, who may not be evicted, who goes first, all under one lock.

A slot is free, or reserved by a writer, or holds a block. A lease keeps a block in its slot until its time is over. A
block with a child in the arena stays, since without it the child could not be reached; only orphans, which can't be
reached themselves, go with what hangs below them. What a call costs does not depend on the number of blocks, but for
the logarithm of a policy's heap, and for the calls that list blocks.

Where the memory has slot headers, they follow the index: a block has one from its publication until it is evicted or
dropped, a free or reserved slot has none.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvpool_agent.policy.eviction import policy_of
from kvpool_agent.store.displaced import Displaced
from kvpool_agent.store.feed import Change
from kvpool_agent.store.gone import Gone
from kvpool_agent.store.headers import SlotHeader
from kvpool_agent.store.index import EVERY_DEPTH, Block, Index
from kvpool_agent.store.leases import Leases
from kvpool_agent.store.pressure import Pressure
from kvpool_agent.store.slots import FreeSlots
from kvpool_agent.store.table import HeaderTable
from kvpool_contract.config import DEFAULT_EVICTION, DEFAULT_OWNED_PERCENT

PASSED_OVER = 64  # blocks that may not make room, before it is given up
SHRINK_BLOCKS = 256  # at a time beyond what a writer asks for, where the capacity was lowered


@dataclass(frozen=True)
class Held:
    """Where a block lies and what its bytes must hash to."""

    key: bytes
    slot: int
    tag: bytes
    parent: bytes
    foreign: bool


# Gets an owned block that is being evicted: True where the callee takes its slot over, until it gives that back
Spill = Callable[[Held], bool]
# Whether the block with this key may make room, asked under the lock
MayGo = Callable[[bytes], bool]


class Arena:
    """Slots 0 … slot_count − 1. Times in seconds of one monotonic clock.

    `capacity`: slots that may be in use, all of them to begin with; lowered, blocks go as writers come. `spill`: called
    under the lock, so it only notes the block; while it has the slot, nobody writes there.
    """

    def __init__(
        self,
        slot_count: int,
        table: HeaderTable | None = None,
        *,
        writable_at: float = 0.0,
        unjudged: Iterable[int] = (),
        eviction: str = DEFAULT_EVICTION,
        owned_percent: int = DEFAULT_OWNED_PERCENT,
        told_depth: int = EVERY_DEPTH,
        declared_alone: bool = False,
    ) -> None:
        """told_depth: others are told of no block that lies deeper in its chain, in blocks. declared_alone: and of none
        that is not declared. table: the memory's slot headers. No slot is given to a writer before `writable_at`, nor
        while one of `unjudged`, which an earlier worker may have filled, has not been judged."""
        self.slot_count = self.capacity = slot_count
        self.eviction = eviction
        self.spill: Spill | None = None
        self.evicted = 0  # blocks
        self.displaced = Displaced()
        self._gone = Gone(slot_count)
        self._lock = threading.Lock()
        self._table = table
        self._writable_at = writable_at
        self._unjudged = set(unjudged)
        self._index = Index(declared_alone=declared_alone)
        self._index.told_depth = told_depth
        self.heads, self.told_heads = self._index.heads, self._index.told_heads
        self._leases = Leases(self._lease_ended)
        self._pressure = Pressure(owned_percent, lambda: policy_of(eviction))
        self._free = FreeSlots(slot_count)
        self._free.add(slot for slot in range(slot_count) if slot not in self._unjudged)
        self._doomed = 0  # slots of dropped blocks whose leases have not ended

    # -- reading -------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._index.blocks)

    @property
    def used_slots(self) -> int:
        return self.slot_count - len(self._free)

    @property
    def reserved_slots(self) -> int:
        """Slots that hold no block and are not free: writers', spilled ones, those not judged yet."""
        with self._lock:
            return self.used_slots - len(self._index.blocks) - self._doomed

    @property
    def leased_blocks(self) -> int:
        return self._leases.blocks

    @property
    def adjoining_blocks(self) -> int:
        """Blocks that lie in the slot after their parent's: what one read can take together."""
        return self._index.adjoining

    @property
    def foreign(self) -> int:
        """Blocks that another member's engine computed."""
        return self._index.foreign

    def held(self, keys: Iterable[bytes]) -> list[bool]:
        """For each key whether it is here."""
        with self._lock:
            return [key in self._index.blocks for key in keys]

    def told(self, keys: Iterable[bytes]) -> list[bool]:
        """For each key whether it is here and others may be told so."""
        with self._lock:
            return [self._index.is_told(key) for key in keys]

    def made_room(self, keys: Iterable[bytes], *, told: bool = False) -> list[bool]:
        """For each key whether it lay here and made room, as far as that is remembered (kvpool_agent.store.gone).
        told: and others may be told so."""
        with self._lock:
            return [key in self._gone and (not told or self._index.may_tell(key)) for key in keys]

    def may_tell(self, keys: Iterable[bytes], chain: Sequence[bytes] = ()) -> list[bytes]:
        """Those that others may be told of, here or not. chain: their request's blocks, in order, for their depth."""
        with self._lock:
            too_deep = set(chain[self._index.told_depth :])
            return [key for key in keys if key not in too_deep and self._index.may_tell(key)]

    def declare(self, keys: frozenset[bytes]) -> None:
        """The blocks that others may be told of from now on, here or not, where that is for declared ones."""
        with self._lock:
            self._index.declare(keys)

    def keys(self, *, told: bool = False) -> list[bytes]:
        """told: those alone that others may be told of."""
        with self._lock:
            blocks = self._index.blocks
            if told and not self._index.tells_all:
                return [key for key in blocks if self._index.is_told(key)]
            return list(blocks)

    @property
    def orphan_blocks(self) -> int:
        """Blocks whose parent nobody holds, as far as that has been asked."""
        return self._index.orphans.count

    def orphans(self) -> list[tuple[bytes, bytes]]:
        """(key, parent's key) of the blocks whose parent is not here."""
        with self._lock:
            return [(key, self._index.blocks[key].parent) for key in self._index.orphans.all()]

    def run(self, keys: Sequence[bytes]) -> int:
        """How many of the keys are here, from the first on without a gap."""
        with self._lock:
            for i, key in enumerate(keys):
                if key not in self._index.blocks:
                    return i
            return len(keys)

    def writable(self, now: float) -> bool:
        """Whether slots are given to writers. Until then a predecessor's leases may not be over, or its blocks not
        all be found, and a parent would look like a leaf."""
        return now >= self._writable_at and not self._unjudged

    # -- leases --------------------------------------------------------------------------------------

    def lease(self, keys: Sequence[bytes], now: float, seconds: float) -> tuple[int, list[Held | None]]:
        """Keeps the blocks that are here in their slots until `now + seconds`, and makes them fresh: one request leases
        a block more than once, so how often it is used is told apart (`use`).

        Returns the lease's number and, for each key, where it lies or None.
        """
        with self._lock:
            self._leases.expire(now)
            found: list[Held | None] = []
            kept = []
            for key in keys:
                block = self._index.blocks.get(key)
                if block is None:
                    found.append(None)
                    continue
                kept.append(block)
                self._pressure.settle(block, bound=True)
                self._pressure.touch(block)
                found.append(_held(block))
            return self._leases.begin(kept, now + seconds), found

    def renew(self, lease: int, now: float, seconds: float) -> bool:
        """Gives a lease more time; False when it is over already."""
        with self._lock:
            self._leases.expire(now)
            return self._leases.renew(lease, now + seconds)

    def release(self, lease: int) -> None:
        with self._lock:
            self._leases.end(lease)

    def use(self, keys: Iterable[bytes]) -> None:
        """One request contained these blocks."""
        with self._lock:
            for key in keys:
                block = self._index.blocks.get(key)
                if block is not None:
                    self._pressure.use(block)

    def adopt(self, keys: Iterable[bytes]) -> None:
        """These blocks, which another member's engine computed, are owned from now on; several requests there have
        contained them."""
        with self._lock:
            for key in keys:
                block = self._index.blocks.get(key)
                if block is not None:
                    self._pressure.adopt(block)
                    self._pressure.use(block)
                    self._settle(block)

    # -- writing -------------------------------------------------------------------------------------

    def reserve(self, count: int, now: float, may_go: MayGo | None = None, *, copies: bool = False) -> list[int]:
        """Up to `count` slots to write into, by evicting what may be; fewer when everything is leased or in use as
        a parent of what is, or `may_go` keeps it; none before the arena is `writable`. Neighbours
        where there is room. copies: of other members' blocks are to come."""
        with self._lock:
            if not self.writable(now):
                return []
            self._leases.expire(now)
            count = min(count, self.capacity)
            for _ in range(count + SHRINK_BLOCKS):
                if self._room() >= count or not self._evict_one(may_go, copies=copies):
                    break
            return self._free.take(min(count, max(0, self._room())))

    def give_back(self, slots: Iterable[int]) -> None:
        """Frees slots that were reserved and not filled, or taken over to spill."""
        with self._lock:
            self._free.add(slots)

    def commit(self, key: bytes, parent: bytes, slot: int, tag: bytes, *, foreign: bool) -> bool:
        """Publishes a filled slot as a block. False, and the slot is free again, when the block is here already, or
        would hang below itself."""
        with self._lock:
            if not self._index.takes(key, parent):
                self._free.add([slot])
                return False
            if self._table is not None:
                self._table.fill(slot, SlotHeader(key, parent, tag, foreign))
            self._add(Block(key, slot, parent, tag, foreign))
            return True

    def drop(self, key: bytes) -> None:
        """Forgets a block, for example one whose bytes failed their tag; the slot of a leased one is free when its
        leases are over."""
        with self._lock:
            block = self._index.blocks.get(key)
            if block is not None:
                self._forget(block)
                self._vacate(block)

    def computed_again(self, keys: Iterable[bytes]) -> int:
        """How many of these, which were just computed, had lain here and made room for copies of others' blocks."""
        with self._lock:
            return self.displaced.take(keys)

    # -- the directory's view ------------------------------------------------------------------------

    def place(self, chain: Iterable[bytes]) -> None:
        """A request's whole chain in order: says where the blocks of it that are here belong."""
        with self._lock:
            self._index.place(chain)

    def judge_orphan(self, key: bytes, *, held_elsewhere: bool) -> None:
        """Whether another member holds the parent of a block whose parent is not here."""
        with self._lock:
            self._index.orphans.judge(key, proved=not held_elsewhere)

    def changes(self) -> tuple[list[Change], bool]:
        """What has changed since the last call, and whether that is not all of it."""
        with self._lock:
            return self._index.feed.take()

    def placed(self) -> list[tuple[bytes, bytes]]:
        """(key, first key of its group) of every block whose group is known."""
        with self._lock:
            blocks = self._index.blocks.items()
            return [(key, block.head) for key, block in blocks if block.head and self._index.is_told(key)]

    # -- recovery ------------------------------------------------------------------------------------

    def unjudged(self) -> list[int]:
        return sorted(self._unjudged)

    def judge(self, slot: int, header: SlotHeader | None) -> bool:
        """Makes an unjudged slot the block of its header, whose bytes were checked, or, with None, a free one. False
        when it is free."""
        with self._lock:
            self._unjudged.discard(slot)
            if header is not None and self._index.takes(header.key, header.parent):
                self._add(Block(header.key, slot, header.parent, header.tag, header.foreign))
                return True
            if self._table is not None:
                self._table.clear(slot)
            self._free.add([slot])
            return False

    # -- inside the lock -----------------------------------------------------------------------------

    def _room(self) -> int:
        return min(len(self._free), self.capacity - self.used_slots)

    def _add(self, block: Block) -> None:
        self._pressure.come(block)
        self._index.add(block)
        self._settle(block)
        parent = self._index.blocks.get(block.parent)
        if parent is not None:
            self._settle(parent)

    def _settle(self, block: Block) -> None:
        self._pressure.settle(block, bound=block.leases > 0 or self._index.has_children(block.key))

    def _lease_ended(self, block: Block) -> None:
        if block.dropped:
            self._doomed -= 1
            self._free.add([block.slot])
        else:
            self._settle(block)
            self._index.orphans.lease_ended(block.key)

    def _evict_one(self, may_go: MayGo | None, *, copies: bool) -> bool:
        """Takes one block out; its slot is free then, unless it is spilled. False when there is none to take."""
        blocks = self._index.blocks
        orphan = self._index.orphans.next(lambda key: blocks[key].leases > 0)
        key = orphan if orphan is not None else self._next(may_go)
        if key is None:
            return False
        block = blocks[key]
        self._forget(block, reachable=orphan is None, evicted=orphan is None)
        self.evicted += 1
        self._gone.add(key)
        if copies and not block.foreign and orphan is None:
            self.displaced.note(key)
        spills = orphan is None and not block.foreign and self.spill is not None and self.spill(_held(block))
        if not spills:
            self._vacate(block)
        return True

    def _next(self, may_go: MayGo | None) -> bytes | None:
        """The block that makes room; those before it in the policy's order that may not count as used."""
        for _ in range(PASSED_OVER):
            key = self._pressure.next(self.capacity)
            if key is None or may_go is None or may_go(key):
                return key
            self._pressure.use(self._index.blocks[key])
        return None

    def _forget(self, block: Block, *, reachable: bool = True, evicted: bool = False) -> None:
        self._pressure.go(block, evicted=evicted)
        if self._table is not None:
            self._table.clear(block.slot)
        bare = self._index.remove(block, reachable=reachable)
        if bare is not None:
            self._settle(bare)

    def _vacate(self, block: Block) -> None:
        if block.leases:
            block.dropped = True
            self._doomed += 1
        else:
            self._free.add([block.slot])


def _held(block: Block) -> Held:
    return Held(block.key, block.slot, block.tag, block.parent, block.foreign)
