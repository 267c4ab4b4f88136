"""The slots that are free, as runs of neighbours, so that blocks which come together lie together where there is room.

A run is known by both of its ends, and by the power of two that its length has reached: taking and freeing cost the
same however many slots there are. Used under the arena's lock.
"""

import itertools
from collections.abc import Iterable


class FreeSlots:
    """Slots 0 … slot_count − 1, all of them taken to begin with."""

    def __init__(self, slot_count: int) -> None:
        self._ends: dict[int, int] = {}  # first slot of a run: the slot after its last one
        self._starts: dict[int, int] = {}  # the slot after a run's last one: its first
        self._by_size: list[dict[int, None]] = [{} for _ in range(slot_count.bit_length() + 1)]
        self._free = 0

    def __len__(self) -> int:
        return self._free

    def add(self, slots: Iterable[int]) -> None:
        """Frees taken slots."""
        for slot in slots:
            start, end = slot, slot + 1
            if slot in self._starts:
                start = self._starts[slot]
                self._forget(start)
            if end in self._ends:
                end = self._ends[end]
                self._forget(slot + 1)
            self._keep(start, end)
            self._free += 1

    def take(self, count: int) -> list[int]:
        """Up to `count` slots in ascending runs: a run that has room for all, else what there is."""
        taken: list[int] = []
        while len(taken) < count and self._free:
            wanted = count - len(taken)
            start = self._roomy(wanted)
            end = self._ends[start]
            cut = min(end, start + wanted)
            self._forget(start)
            if cut < end:
                self._keep(cut, end)
            taken += range(start, cut)
            self._free -= cut - start
        return taken

    def _roomy(self, wanted: int) -> int:
        """The first slot of a run: one of at least `wanted` where such a one is found without a search, as small as
        may be; else one of the longest. A run of wanted … 2 · wanted − 1 slots may be passed over for a longer one."""
        sizes = self._by_size
        enough = min((wanted - 1).bit_length() + 1, len(sizes))
        for size in itertools.chain(range(enough, len(sizes)), range(enough - 1, -1, -1)):
            if sizes[size]:
                return next(iter(sizes[size]))
        raise AssertionError("no slot is free")

    def _keep(self, start: int, end: int) -> None:
        self._ends[start] = end
        self._starts[end] = start
        self._by_size[(end - start).bit_length()][start] = None

    def _forget(self, start: int) -> None:
        end = self._ends.pop(start)
        del self._starts[end]
        del self._by_size[(end - start).bit_length()][start]
