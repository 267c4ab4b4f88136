"""The slab of a format: the arena's memory cut into slots of one block's size.

One format for the life of a worker: blocks of an engine that comes back with the same format are kept, also those of
a worker before this one; for an engine of another format the worker is started anew, so that no transfer of the old
one can land in its slots.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvpool_agent.policy.heat import HeatTable
from kvpool_agent.store.arena import Arena
from kvpool_agent.store.headers import encode_fields, slots_that_fit
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.table import HeaderTable
from kvpool_contract.names import block_key

LEASE_SECONDS = 2.0
LEAST_BLOCKS = 8
LEAST_HEAT, HEAT_PER_SLOT = 4096, 4


@dataclass
class Slab:
    """A format's slots. `fingerprint` is the hash of `fields`; `heat` counts the requests of its engine."""

    fingerprint: bytes
    fields: dict[str, Any]
    slot_bytes: int
    memory: ArenaMemory
    arena: Arena
    heat: HeatTable = field(init=False)
    heat_lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        # what may be offered as hot lies in the arena; some more is remembered of what was evicted
        self.heat = HeatTable(max(LEAST_HEAT, HEAT_PER_SLOT * self.arena.slot_count))

    def view(self, slot: int) -> memoryview:
        return self.memory.view[slot * self.slot_bytes : (slot + 1) * self.slot_bytes]

    def address(self, slot: int) -> int:
        return self.memory.address + slot * self.slot_bytes

    def key(self, engine_key: bytes, hash_bytes: int) -> bytes:
        """The block key of an engine's key, which is its hash and 4 bytes of group."""
        return block_key(engine_key[:hash_bytes], int.from_bytes(engine_key[hash_bytes:], "big"), self.fingerprint)


class NoRoom(Exception):  # noqa: N818 - an outcome, not a fault
    """The arena holds fewer than 8 blocks of this format."""


class OtherFormat(Exception):  # noqa: N818
    """The arena's memory is cut for another format, and transfers of it may still run."""


class Slabs:
    """The slab of now. `writable_at`: until then slots may still be read under leases that a predecessor gave."""

    def __init__(self, memory: ArenaMemory, writable_at: float) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._current: Slab | None = None
        self._table: HeaderTable | None = None
        self._writable_at = writable_at

    @property
    def current(self) -> Slab | None:
        return self._current

    @property
    def limit_bytes(self) -> int:
        return self._memory.size

    def of(self, fingerprint: bytes) -> Slab | None:
        """The slab of this format, if it is the current one."""
        slab = self._current
        return slab if slab is not None and slab.fingerprint == fingerprint else None

    def reopen(self) -> tuple[Slab, HeaderTable] | None:
        """The slab that a predecessor has left in the memory, its filled slots not yet judged; None where there is
        none that this version reads."""
        table = HeaderTable.found(self._memory.view)
        if table is None or table.header.slot_count < LEAST_BLOCKS:
            return None
        with self._lock:
            slab = self._slab(table, list(table.not_free()))
            return slab, table

    def open(self, fingerprint: bytes, fields: dict[str, Any], slot_bytes: int) -> Slab:
        """The slab for this format, made if there is none yet. Raises NoRoom, and OtherFormat where the memory is
        another format's.

        To cut the memory it waits until leases that a predecessor gave on it are over, two seconds at most: the new
        headers may lie where its slots did.
        """
        if slots_that_fit(self._memory.size, slot_bytes, len(encode_fields(fields))) < LEAST_BLOCKS:
            raise NoRoom
        with self._lock:
            if self._current is None:
                time.sleep(max(0.0, self._writable_at - time.monotonic()))
                self._slab(HeaderTable.made(self._memory.view, fingerprint, fields, slot_bytes), ())
            assert self._current is not None
            if self._current.fingerprint != fingerprint:
                raise OtherFormat
            return self._current

    def wipe(self) -> None:
        """Lets the next worker find nothing. This one goes on with what it has."""
        with self._lock:
            if self._table is not None:
                self._table.wipe()

    def _slab(self, table: HeaderTable, unjudged: Sequence[int]) -> Slab:
        cut = table.header
        arena = Arena(cut.slot_count, table, writable_at=self._writable_at, unjudged=unjudged)
        self._table = table
        self._current = Slab(cut.fingerprint, cut.fields, cut.slot_bytes, self._memory, arena)
        return self._current
