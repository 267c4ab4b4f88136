"""The slabs of a format, one for each cache namespace: the arena's memory cut into slots of one block's size.

One format for the life of a worker: blocks of an engine that comes back with the same format are kept, also those of
a worker before this one; for an engine of another format the worker is started anew, so that no transfer of the old
one can land in its slots.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from kvpool_agent.keyring import Keyring, Space
from kvpool_agent.policy.ghost import Ghost
from kvpool_agent.policy.heat import HeatTable, HotBlock
from kvpool_agent.policy.near_identical import NearIdentical
from kvpool_agent.policy.reuse import ReuseDistances
from kvpool_agent.policy.shares import parts
from kvpool_agent.store.arena import Arena, Held, MayGo
from kvpool_agent.store.headers import encode_fields, slot_bytes_of, slots_that_fit
from kvpool_agent.store.index import EVERY_DEPTH
from kvpool_agent.store.memory import ArenaMemory, Part
from kvpool_agent.store.table import HeaderTable
from kvpool_contract.config import DEFAULT_EVICTION, DEFAULT_OWNED_PERCENT, AgentConfig
from kvpool_contract.names import block_key, format_fingerprint
from kvpool_contract.prefixes import DECLARED, NEVER
from kvpool_contract.tenants import slab_id

LEASE_SECONDS = 2.0
LEAST_BLOCKS = 8
LEAST_HEAT, HEAT_PER_SLOT = 4096, 4


class LowerTier(Protocol):
    """Where blocks lie beyond their time in the arena."""

    def used(self, slab: "Slab", chain: Sequence[bytes], again: Sequence[bytes]) -> None:
        """A request contained the blocks of `chain`, in this order; for those in `again` it was not the first."""
        ...

    def evicting(self, slab: "Slab", block: Held) -> bool:
        """As Arena.spill."""
        ...


@dataclass
class Slab:
    """The slots of a format and a cache namespace. `fingerprint` is the hash of `fields`; `id`: what members call it;
    `heat` counts the requests of its engine. `number`: its place among the slabs, 0 for the default one;
    `first_slot`: the number of its first slot in the whole memory."""

    fingerprint: bytes
    fields: dict[str, Any]
    slot_bytes: int
    memory: ArenaMemory | Part
    arena: Arena
    space: Space = field(default_factory=Space)
    number: int = 0
    first_slot: int = 0
    below: LowerTier | None = None
    id: bytes = field(init=False)
    heat: HeatTable = field(init=False)
    ghost: Ghost = field(init=False)
    reuse: ReuseDistances = field(init=False)
    near_identical: NearIdentical = field(default_factory=NearIdentical)
    heat_lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.below is not None:
            self.arena.spill = partial(self.below.evicting, self)
        self.id = slab_id(self.fingerprint, self.space.name) if self.space.keyed else self.fingerprint
        # what may be offered as hot lies in the arena; some more is remembered of what was evicted
        self.heat = HeatTable(max(LEAST_HEAT, HEAT_PER_SLOT * self.arena.slot_count))
        self.ghost = Ghost(self.arena.capacity, self.arena.eviction)
        self.reuse = ReuseDistances(self.arena.capacity)

    def view(self, slot: int) -> memoryview:
        return self.memory.view[slot * self.slot_bytes : (slot + 1) * self.slot_bytes]

    def address(self, slot: int) -> int:
        return self.memory.address + slot * self.slot_bytes

    def hottest(self, now: float, limit: int) -> list[HotBlock]:
        """The hottest of the blocks that are here and that others may be told of, hottest first and parents before
        children."""
        here = self.arena.keys(told=True)  # first: the arena's lock may be held where heat is asked for
        with self.heat_lock:
            return self.heat.hottest(here, now, limit)

    def colder_than(self, heat: float, now: float) -> MayGo:
        """Which blocks may make room for some of this heat: those that are colder."""

        def colder(key: bytes) -> bool:
            with self.heat_lock:
                return self.heat.of(key, now) < heat

        return colder

    def key(self, engine_key: bytes, hash_bytes: int, names: bytes | None = None) -> bytes:
        """The block key of an engine's key, which is its hash and 4 bytes of group. names: the key of names, that of
        the epoch of now where it is None; there must be one."""
        name_key = self.space.names[0] if names is None else names
        group = int.from_bytes(engine_key[hash_bytes:], "big")
        return block_key(engine_key[:hash_bytes], group, self.fingerprint, name_key)


class NoRoom(Exception):  # noqa: N818 - an outcome, not a fault
    """The arena holds fewer than 8 blocks of this format."""


class OtherFormat(Exception):  # noqa: N818
    """The arena's memory is cut for another format, and transfers of it may still run."""


def slab_options(config: AgentConfig) -> dict[str, Any]:
    """What Slabs takes of the agent's configuration, by keyword."""
    publication = config.publication
    return {
        "eviction": config.eviction,
        "owned_percent": config.ownedPercent,
        "told_tokens": publication.maxDepthTokens,
        # with Never nothing is ever declared: then the arena tells of no block, to the pool's external store neither
        "declared_alone": publication.policy in (DECLARED, NEVER),
    }


class Slabs:
    """The slabs of now. `writable_at`: until then slots may still be read under leases that a predecessor gave."""

    def __init__(
        self,
        memory: ArenaMemory,
        writable_at: float,
        keyring: Keyring | None = None,
        below: LowerTier | None = None,
        *,
        eviction: str = DEFAULT_EVICTION,
        owned_percent: int = DEFAULT_OWNED_PERCENT,
        told_tokens: int = 0,
        declared_alone: bool = False,
    ) -> None:
        """below: where what is used again is kept as well. told_tokens: others are told of no block that ends deeper
        in its prompt, but where its cache namespace says otherwise; 0: of all. declared_alone: and of none that is not
        declared."""
        self._memory = memory
        self._keyring = keyring or Keyring()
        self._below = below
        self._lock = threading.Lock()
        self._slabs: tuple[Slab, ...] = ()
        self._tables: list[HeaderTable] = []
        self._writable_at = writable_at
        self._eviction, self._owned_percent, self._told_tokens = eviction, owned_percent, told_tokens
        self._declared_alone = declared_alone

    @property
    def all(self) -> tuple[Slab, ...]:
        """The default cache namespace's first; without those that have no room for 8 blocks."""
        return self._slabs

    @property
    def current(self) -> Slab | None:
        """The default cache namespace's slab."""
        slabs = self._slabs
        return slabs[0] if slabs else None

    @property
    def limit_bytes(self) -> int:
        return self._memory.size

    @property
    def huge_pages(self) -> bool:
        """Whether they are asked for."""
        return self._memory.huge_pages

    def of(self, slab: bytes) -> Slab | None:
        """The slab with this id."""
        return next((one for one in self._slabs if one.id == slab), None)

    @property
    def asked_by_requests(self) -> bool:
        """Whether requests may say of which cache namespace they are."""
        return self._keyring.mode != "Ignore"

    def usable(self, cache_namespace: str) -> Slab | None:
        """The slab of a request's blocks, of the default cache namespace for an empty name; None where this agent has
        no room for it, or no key."""
        found = (one for one in self._slabs if one.space.name == cache_namespace or not (cache_namespace or one.number))
        slab = next(found, None)
        return slab if slab is not None and slab.space.open else None

    def release(self, number: int, lease: int) -> None:
        """Ends a lease on the slab of this number."""
        for slab in self._slabs:
            if slab.number == number:
                slab.arena.release(lease)

    def reopen(self) -> list[tuple[Slab, HeaderTable]]:
        """The slabs that a predecessor has left in the memory, their filled slots not yet judged; none where there is
        no default one that this version reads."""
        slot_bytes = slot_bytes_of(self._memory.view)
        with self._lock:
            cut = self._cut(slot_bytes) if slot_bytes else []
            table = HeaderTable.found(cut[0].view) if cut else None
            if table is None or table.header.slot_count < LEAST_BLOCKS or table.header.slot_bytes != slot_bytes:
                return []
            try:
                fields = _of_format(table.header.fields, self._keyring.default)
            except KeyError:
                return []
            return self._open(format_fingerprint(fields), fields, slot_bytes, cut, keep=True)

    def open(self, fingerprint: bytes, fields: dict[str, Any], slot_bytes: int) -> Slab:
        """The default slab for this format, made with the others if there is none yet. Raises NoRoom, and OtherFormat
        where the memory is another format's.

        To cut the memory it waits until leases that a predecessor gave on it are over, two seconds at most: the new
        headers may lie where its slots did.
        """
        cut = self._cut(slot_bytes)
        if _slots(cut[0], _written(fields, self._keyring.default), slot_bytes) < LEAST_BLOCKS:
            raise NoRoom
        with self._lock:
            if not self._slabs:
                time.sleep(max(0.0, self._writable_at - time.monotonic()))
                self._open(fingerprint, fields, slot_bytes, cut, keep=False)
            if self._slabs[0].fingerprint != fingerprint:
                raise OtherFormat
            return self._slabs[0]

    def wipe(self) -> None:
        """Lets the next worker find nothing. This one goes on with what it has."""
        with self._lock:
            for table in self._tables:
                table.wipe()

    def _cut(self, slot_bytes: int) -> list[Part]:
        percents = [space.percent for space in self._keyring.spaces]
        return [self._memory.part(*part) for part in parts(self._memory.size, slot_bytes, percents)]

    def _open(
        self, fingerprint: bytes, fields: dict[str, Any], slot_bytes: int, cut: Sequence[Part], *, keep: bool
    ) -> list[tuple[Slab, HeaderTable]]:
        """keep: whether what a predecessor has left is taken over, where it is of this format and its place."""
        opened = []
        for number, (space, part) in enumerate(zip(self._keyring.spaces, cut, strict=True)):
            written = _written(fields, space)
            if _slots(part, written, slot_bytes) < LEAST_BLOCKS:
                continue
            table = HeaderTable.found(part.view) if keep else None
            found = table is not None and (table.header.fields, table.header.slot_bytes) == (written, slot_bytes)
            if table is None or not found:
                name = format_fingerprint(written) if space.keyed else fingerprint
                table = HeaderTable.made(part.view, name, written, slot_bytes)
            unjudged = list(table.not_free()) if found else ()
            arena = Arena(
                table.header.slot_count,
                table,
                writable_at=self._writable_at,
                unjudged=unjudged,
                eviction=self._eviction,
                owned_percent=self._owned_percent,
                told_depth=_told_depth(fields, space.told_tokens or self._told_tokens),
                declared_alone=self._declared_alone,
            )
            first = (part.address - self._memory.address) // slot_bytes
            slab = Slab(fingerprint, fields, slot_bytes, part, arena, space, number, first, self._below)
            self._keyring.register(slab.id, space)
            opened.append((slab, table))
        self._tables = [table for _, table in opened]
        self._slabs = tuple(slab for slab, _ in opened)
        return opened


def _told_depth(fields: dict[str, Any], tokens: int) -> int:
    """In blocks of the format, how deep others are told of a prompt."""
    size = fields.get("block_tokens")
    return tokens // size if tokens and isinstance(size, int) and size > 0 else EVERY_DEPTH


def _written(fields: dict[str, Any], space: Space) -> dict[str, Any]:
    """What a part's header says: the format, and the cache namespace where that has a key."""
    return {"cache_namespace": space.name, "format": fields} if space.keyed else fields


def _of_format(written: dict[str, Any], space: Space) -> dict[str, Any]:
    """The format's fields in the default part's header. Raises KeyError where it is another cache namespace's."""
    if not space.keyed:
        if "cache_namespace" in written:
            raise KeyError(space.name)
        return written
    if written["cache_namespace"] != space.name:
        raise KeyError(space.name)
    fields: dict[str, Any] = written["format"]
    return fields


def _slots(part: Part, written: dict[str, Any], slot_bytes: int) -> int:
    return slots_that_fit(len(part.view), slot_bytes, len(encode_fields(written)))
