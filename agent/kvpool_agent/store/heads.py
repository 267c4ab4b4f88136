"""Names of the blocks at which chains begin, with numbered changes for those who follow them.

Who knows the heads of all that is held can say without asking that a prompt is unknown: a chain whose first block is
nowhere is nowhere. A name is the beginning of a block key. What is held is told in full, or as the changes since a
number; a set that has grown over its limit tells nothing, and who follows it must not conclude anything from it.
"""

import collections
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

NAME_BYTES = 8
MAX_HEADS = 65_536
MAX_CHANGES = 4096
OVER_SECONDS = 60.0
UNKNOWN = 0  # no number: nothing is known


@dataclass(frozen=True)
class Told:
    """`number`: of the state that this leads to, UNKNOWN where nothing can be said; `whole`: `added` is all there is,
    what was known before goes."""

    number: int
    whole: bool = False
    added: tuple[bytes, ...] = ()
    withdrawn: tuple[bytes, ...] = ()


NOTHING = Told(UNKNOWN)


def name_of(key: bytes) -> bytes:
    return key[:NAME_BYTES]


class Heads:
    """A set of names. Any thread may call."""

    def __init__(self, limit: int = MAX_HEADS) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._names: set[bytes] = set()
        self._changes: collections.deque[tuple[bytes, bool]] = collections.deque(maxlen=MAX_CHANGES)
        self._number = 1
        self._on_change: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._names)

    @property
    def number(self) -> int:
        return self._number

    def follow(self, on_change: Callable[[], None]) -> None:
        """Calls it now and at each change, one at a time. It must not block: it is called under the writer's locks."""
        with self._changed:
            self._on_change = on_change
            on_change()

    def poke(self) -> None:
        """Calls whoever follows."""
        with self._changed:
            self._on_change()

    def put(self, name: bytes) -> None:
        with self._changed:
            if name not in self._names:
                self._names.add(name)
                self._note(name, held=True)

    def take(self, name: bytes) -> None:
        with self._changed:
            if name in self._names:
                self._names.discard(name)
                self._note(name, held=False)

    def _note(self, name: bytes, *, held: bool) -> None:
        self._changes.append((name, held))
        self._number += 1
        self._changed.notify_all()
        self._on_change()

    def since(self, number: int, seconds: float = 0.0) -> Told:
        """What has changed since this number; where there is nothing, it waits for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._number != number, seconds)
            if len(self._names) > self._limit:
                return NOTHING
            missed = self._number - number
            if number == UNKNOWN or not 0 <= missed <= len(self._changes):
                return Told(self._number, True, tuple(self._names))
            recent = list(itertools.islice(reversed(self._changes), missed))
            last = dict(reversed(recent))
            return Told(self._number, False, _those(last, held=True), _those(last, held=False))


def _those(changes: dict[bytes, bool], *, held: bool) -> tuple[bytes, ...]:
    return tuple(name for name, now in changes.items() if now is held)


class Union:
    """The names of several sets, each followed by what it tells; `names` holds those that are in any of them.

    The limit is for all of them together: a set that would go beyond it is not known, and asked for again after a
    while."""

    def __init__(self, limit: int = MAX_HEADS, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._sets: dict[str, set[bytes]] = {}
        self._numbers: dict[str, int] = {}
        self._over: dict[str, float] = {}  # sets that were too many, and when they are asked for again
        self._holders: collections.Counter[bytes] = collections.Counter()
        self._held = 0
        self.names = Heads(limit)

    def number(self, of: str) -> int:
        """The number since which a set is to be asked for changes."""
        with self._lock:
            return self._numbers.get(of, UNKNOWN)

    def knows(self, of: str) -> bool:
        """Whether all names of a set are known, as of its last word."""
        with self._lock:
            return of in self._numbers and of not in self._over

    def told(self, of: str, told: Told) -> None:
        """Takes what a set has told since its last number: changes of one that was forgotten meanwhile are not all of
        it, so it is asked for the whole next."""
        with self._lock:
            known = told.whole or of in self._numbers
            if told.number == UNKNOWN or not known or self._over.get(of, math.inf) <= self._clock():
                self._forget(of)
                return
            self._numbers[of] = told.number
            if of in self._over:
                return
            names, added = self._sets.setdefault(of, set()), set(told.added)
            self._take(names, names - added if told.whole else names.intersection(told.withdrawn))
            if self._held + len(added - names) > self._limit:
                self._forget(of)
                self._numbers[of], self._over[of] = told.number, self._clock() + OVER_SECONDS
                return
            self._put(names, added - names)

    def forget(self, of: str) -> None:
        with self._lock:
            self._forget(of)

    def _forget(self, of: str) -> None:
        self._numbers.pop(of, None)
        self._over.pop(of, None)
        names = self._sets.pop(of, set())
        self._take(names, set(names))

    def _put(self, names: set[bytes], added: Iterable[bytes]) -> None:
        for name in added:
            names.add(name)
            self._held += 1
            self._holders[name] += 1
            self.names.put(name)

    def _take(self, names: set[bytes], gone: Iterable[bytes]) -> None:
        for name in gone:
            names.discard(name)
            self._held -= 1
            self._holders[name] -= 1
            if not self._holders[name]:
                del self._holders[name]
                self.names.take(name)
