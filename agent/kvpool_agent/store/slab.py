"""The slab of a format: the arena's memory cut into slots of one block's size.

One format for the life of a worker: blocks of an engine that comes back with the same format are kept; for an
engine of another format the worker is started anew, so that no transfer of the old one can land in its slots.
"""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from kvpool_agent.policy.heat import HeatTable
from kvpool_agent.store.arena import Arena
from kvpool_agent.store.memory import ArenaMemory
from kvpool_contract.names import block_key

LEASE_SECONDS = 2.0
LEAST_BLOCKS = 8


@dataclass
class Slab:
    """A format's slots. `fingerprint` is the hash of `fields`; `heat` counts the requests of its engine."""

    fingerprint: bytes
    fields: dict[str, Any]
    slot_bytes: int
    memory: ArenaMemory
    arena: Arena
    heat: HeatTable = field(default_factory=HeatTable)
    heat_lock: threading.Lock = field(default_factory=threading.Lock)

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
    """The slab of now. `usable_at`: until then slots may still be read under leases that somebody else gave."""

    def __init__(self, memory: ArenaMemory, usable_at: float) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._current: Slab | None = None
        self._usable_at = usable_at

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

    def open(self, fingerprint: bytes, fields: dict[str, Any], slot_bytes: int) -> Slab:
        """The slab for this format, made if there is none yet. Waits until leases that a predecessor gave on this
        memory are over, two seconds at most. Raises NoRoom, and OtherFormat where the memory is another format's.
        """
        slot_count = self._memory.size // slot_bytes
        if slot_count < LEAST_BLOCKS:
            raise NoRoom
        with self._lock:
            if self._current is None:
                time.sleep(max(0.0, self._usable_at - time.monotonic()))
                self._current = Slab(fingerprint, fields, slot_bytes, self._memory, Arena(slot_count))
            if self._current.fingerprint != fingerprint:
                raise OtherFormat
            return self._current
