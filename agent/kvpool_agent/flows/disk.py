"""The disk as a source of a plan: from a file into the arena, checked where the bytes land, before members are asked.

A read holds slots for no longer than its bytes are on their way, a part at a time, and a request never waits beyond its
deadline: what comes later is kept all the same. The slots of a read that hangs stay its own until it ends, since its
bytes may still land there.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from kvpool_agent.account import Account
from kvpool_agent.costs import DISK, Costs
from kvpool_agent.flows.fetch import InFlight, Wanted, Watch, keep, not_here, reserved
from kvpool_agent.peer.bounds import Gate
from kvpool_agent.policy.purposes import DISK_READS
from kvpool_agent.store.disk.index import Place, Read
from kvpool_agent.store.disk.tier import DiskTier
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of

PART_BYTES = 32 << 20  # of one file, or one block
DONE, DISK_FAILED = "", "disk_failed"


class DiskSource:
    """Any thread may call. Without a tier it holds nothing."""

    def __init__(self, tier: DiskTier | None, account: Account, in_flight: InFlight, costs: Costs) -> None:
        """in_flight: the blocks that are brought in now, from whomever."""
        self._tier, self._account, self._in_flight, self._costs = tier, account, in_flight, costs
        self._gate = Gate("disk_in", account.count)

    def held(self, slab: Slab, keys: Sequence[bytes]) -> list[bool]:
        """For each block whether it lies here. No I/O."""
        return [place is not None for place in self._find(slab, keys)]

    def load(
        self, slab: Slab, wanted: Sequence[Wanted], deadline: float, checked: Callable[[bytes], None] = lambda _: None
    ) -> str:
        """Loads those blocks that lie here and not in the arena; returns a reason, empty when all came. `checked` is
        called for each block, on another thread. deadline: on the monotonic clock."""
        mine, watch = self._in_flight.claim(wanted), Watch(time.monotonic())

        def came(key: bytes) -> None:
            watch.came(slab.slot_bytes)
            checked(key)

        try:
            with ExitStack() as kept:
                return self._in_parts(slab, mine, deadline, watch, came, kept)
        finally:
            self._in_flight.settle(mine)
            watch.measure(self._costs, DISK, slab.slot_bytes, deadline)

    def _find(self, slab: Slab, keys: Sequence[bytes]) -> Sequence[Place | None]:
        return self._tier.find(slab, keys) if self._tier is not None else [None] * len(keys)

    def _in_parts(
        self,
        slab: Slab,
        wanted: Sequence[Wanted],
        deadline: float,
        watch: Watch,
        came: Callable[[bytes], None],
        kept: ExitStack,
    ) -> str:
        missing = [w.key for w in not_here(slab, wanted)]
        found = [place for place in self._find(slab, missing) if place is not None]
        arena_bytes = slab.arena.slot_count * slab.slot_bytes
        most = max(1, min(PART_BYTES, DISK_READS.room(arena_bytes) // DISK_READS.streams) // slab.slot_bytes)
        reason, broken = DONE, ""
        for part in _parts(found, most):
            if part[0].name == broken:
                continue
            size = len(part) * slab.slot_bytes
            with self._gate.entered(size, **DISK_READS.places(arena_bytes), deadline=deadline) as entered:
                if entered:
                    watch.asked = True
                    watch.begins()
                failed = self._part(slab, part, deadline, came) if entered else "busy"
            if failed and time.monotonic() >= deadline:
                failed = "deadline"
            reason = reason or failed
            broken = part[0].name if failed == DISK_FAILED else broken
            if failed not in (DONE, DISK_FAILED):
                break  # of another file as well
            keep(kept, slab, [place.entry.key for place in part], deadline)
        return reason

    def _part(self, slab: Slab, part: Sequence[Place], deadline: float, came: Callable[[bytes], None]) -> str:
        assert self._tier is not None
        slots, reason = reserved(slab, len(part))
        if not slots:
            return reason
        chosen = part[: len(slots)]
        left = set(slots)

        def landed(i: int) -> bool:
            entry, slot = chosen[i].entry, slots[i]
            if tag_of(entry.key, slab.view(slot)) != entry.tag:
                self._account.count("tag_failures")
                return False
            left.discard(slot)
            if slab.arena.commit(entry.key, entry.parent, slot, entry.tag, foreign=False):
                self._account.moved("disk_in", 1, slab.slot_bytes)
                self._account.brought(entry.key, DISK)
            came(entry.key)
            return True

        def over() -> None:
            slab.arena.give_back(left)

        places = [(place.position, slab.view(slot)) for place, slot in zip(chosen, slots, strict=True)]
        first = chosen[0]
        return self._tier.read(Read(first.name, first.header, places, landed, over), deadline) or reason


def _parts(found: Sequence[Place], most: int) -> list[list[Place]]:
    """Neighbours of one file, so many at a time."""
    parts: list[list[Place]] = []
    for place in found:
        if parts and parts[-1][0].name == place.name and len(parts[-1]) < most:
            parts[-1].append(place)
        else:
            parts.append([place])
    return parts
