"""What waits to be written: keys, not bytes, so that a slow disk holds nothing in the arena.

A block that is evicted before its turn is lost to the disk, unless there is room for its slot: then the slot is taken
over from the arena and goes back when it is written, or when its time is over. Bounded in keys, slots and seconds; what
does not fit is dropped and counted by the caller. Used under the tier's lock.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from kvpool_agent.store.arena import Held

MAX_KEYS = 16_384
WAIT_SECONDS = 60.0
ARENA_PART = 16  # of the slots at most one in so many is taken over
MAX_TAKEN_BYTES = 256 << 20


@dataclass(frozen=True)
class Taken:
    """A block whose slot is ours, and since when."""

    block: Held
    since: float


class Pending:
    """Times in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, tuple[float, int]] = OrderedDict()
        self._runs = 0
        self._taken: list[Taken] = []

    def __len__(self) -> int:
        return len(self._keys) + len(self._taken)

    def add(self, run: Iterable[bytes], now: float) -> int:
        """Blocks that belong together, in their order. One that waits already keeps its place. How many found none."""
        self._runs += 1
        new = [key for key in run if key not in self._keys]
        fit = max(0, MAX_KEYS - len(self._keys))
        self._keys.update((key, (now, self._runs)) for key in new[:fit])
        return len(new[fit:])

    def take_over(self, block: Held, slots: int, slot_bytes: int, now: float) -> bool:
        """The block is being evicted. True where it waited and its slot is ours now; it waits no more in any case."""
        if self._keys.pop(block.key, None) is None:
            return False
        if len(self._taken) >= min(slots // ARENA_PART, MAX_TAKEN_BYTES // slot_bytes):
            return False
        self._taken.append(Taken(block, now))
        return True

    def next_run(self, count: int) -> list[bytes]:
        """Up to so many blocks that belong together, those that came first; they wait no more."""
        found: list[bytes] = []
        first = next(iter(self._keys.values()), (0.0, 0))[1]
        while self._keys and len(found) < count and next(iter(self._keys.values()))[1] == first:
            found.append(self._keys.popitem(last=False)[0])
        return found

    def next_taken(self) -> Held | None:
        return self._taken.pop(0).block if self._taken else None

    def late(self, now: float) -> tuple[int, list[Held]]:
        """Removes those that have waited too long: how many keys, and the blocks whose slots go back."""
        keys = 0
        while self._keys and now - next(iter(self._keys.values()))[0] > WAIT_SECONDS:
            self._keys.popitem(last=False)
            keys += 1
        late = [taken.block for taken in self._taken if now - taken.since > WAIT_SECONDS]
        self._taken = [taken for taken in self._taken if now - taken.since <= WAIT_SECONDS]
        return keys, late

    def clear(self) -> tuple[int, list[Held]]:
        """Removes all: how many keys, and the blocks whose slots go back."""
        keys, taken = len(self._keys), [taken.block for taken in self._taken]
        self._keys.clear()
        self._taken = []
        return keys, taken
