"""S3-FIFO (Yang et al., SOSP 2023): a small queue for newcomers, a main one, and a memory of who left the small one.

A block that no second request contained while it passed the small queue leaves it; if it comes back while it is
remembered it goes to the main queue at once. The main queue gives a block another round for each request that contained
it since, three at most. The published algorithm evicts whoever comes up. Here a block may be bound, by a block that
hangs on it or by a reader: one that comes up bound and was not used again steps aside. When it is free it comes up
before all that came later; when it is used again meanwhile it goes to the main queue. So an age is never lost, no scan
passes the same bound block twice, and parents that wait for their children take no room in the small queue.
"""

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

SMALL_PART = 0.1  # of the blocks held
ROUNDS = 3

K = TypeVar("K", bound=Hashable)


class _Place(Generic[K]):
    """Where a block stands: in a queue's order, aside, or due because it has been aside and is free again."""

    __slots__ = ("due", "free", "key", "number", "ordered", "queue", "uses")

    def __init__(self, key: K, queue: "_Queue[K]") -> None:
        self.key, self.queue = key, queue
        self.uses = self.number = 0
        self.free = self.ordered = self.due = False

    @property
    def aside(self) -> bool:
        return not (self.ordered or self.due)


class _Queue(Generic[K]):
    """First in, first out. `blocks`: in the order or due, without those aside."""

    def __init__(self) -> None:
        self.blocks = 0
        self._order: OrderedDict[K, _Place[K]] = OrderedDict()
        self._due: list[tuple[int, _Place[K]]] = []

    def join(self, place: _Place[K], number: int) -> None:
        place.queue, place.number, place.ordered = self, number, True
        self._order[place.key] = place
        self.blocks += 1

    def free(self, place: _Place[K]) -> None:
        if place.aside:
            place.due = True
            self.blocks += 1
            heapq.heappush(self._due, (place.number, place))

    def first(self, again: Callable[[_Place[K]], None]) -> _Place[K] | None:
        """The free block that has been here longest. Of those bound that come up before it the ones that have been used
        again go on as if they were free (`again`), the others step aside."""
        while self._due or self._order:
            if self._due:
                number, place = self._due[0]
                if not place.due or place.number != number or not place.free:
                    heapq.heappop(self._due)
                    if place.number == number:
                        self.leave(place)
                    continue
            else:
                place = next(iter(self._order.values()))
                if not place.free:
                    if place.uses > 1:
                        again(place)
                    else:
                        self.leave(place)
                    continue
            return place
        return None

    def leave(self, place: _Place[K]) -> None:
        """Out of the order, or due no more."""
        self.blocks -= not place.aside
        if place.ordered:
            del self._order[place.key]
        place.ordered = place.due = False


class S3Fifo(Generic[K]):
    """Every call costs the same, however many blocks there are, but for the logarithm of those that are due."""

    def __init__(self) -> None:
        self._places: dict[K, _Place[K]] = {}
        self._small, self._main = _Queue[K](), _Queue[K]()
        self._left: OrderedDict[K, None] = OrderedDict()
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._places)

    def come(self, key: K) -> None:
        queue = self._main if key in self._left else self._small
        self._left.pop(key, None)
        self._places[key] = place = _Place(key, queue)
        queue.join(place, next(self._numbers))

    def use(self, key: K) -> None:
        place = self._places[key]
        place.uses = min(place.uses + 1, ROUNDS + 1)
        if place.uses > 1 and place.aside and place.queue is self._small:
            self._again(place)

    def touch(self, key: K) -> None:
        """Nothing: order is by arrival."""

    def bind(self, key: K) -> None:
        self._places[key].free = False

    def free(self, key: K) -> None:
        place = self._places[key]
        place.free = True
        place.queue.free(place)

    def go(self, key: K, *, evicted: bool) -> None:
        place = self._places.pop(key)
        place.queue.leave(place)
        if evicted and place.queue is self._small:
            self._left[key] = None
            while len(self._left) > (1 - SMALL_PART) * (len(self._places) + 1):
                self._left.popitem(last=False)

    def next(self) -> K | None:
        while True:
            small, main = self._small.first(self._again), self._main.first(self._again)
            if small is not None and (self._small.blocks > SMALL_PART * len(self._places) or main is None):
                place = small
            elif main is not None:
                place = main
            else:
                return None
            if place.uses <= 1:
                return place.key
            self._again(place)

    def _again(self, place: _Place[K]) -> None:
        """Into the main queue, or another round there."""
        place.uses = 1 if place.queue is self._small else place.uses - 1
        place.queue.leave(place)
        self._main.join(place, next(self._numbers))
