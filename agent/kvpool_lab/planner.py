"""A trace in three passes, as a plan needs it: what it holds; how hits grow with capacity and what a warm-up would do;
and fleets of replicas under each routing, with sharing and without.

Memory is bounded by the blocks that are followed, not by the trace. The second and the third pass replay a sample.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvpool_lab.fleet import Fleet, Hardware
from kvpool_lab.newcomers import Newcomers
from kvpool_lab.recorded import Request
from kvpool_lab.replay import cache_of
from kvpool_lab.routing import router
from kvpool_lab.sample import FOLLOWED_BLOCKS, Census, Sample, Sum

Opened = Callable[[str], Iterable[Request]]  # the trace from its beginning; gets what it is read for
ENOUGH = 0.9  # of the ideal hits: the effective capacity


@dataclass
class Point:
    """One policy at one capacity, in blocks that all replicas hold together."""

    policy: str
    capacity: int
    evicted: int = 0
    missed: Sum = field(default_factory=Sum)


@dataclass
class Curve:
    """Hits of one cache that sees all requests."""

    sample: Sample
    points: Sequence[Point]
    requests: int = 0
    tokens: int = 0
    asked: Sum = field(default_factory=Sum)
    never: Sum = field(default_factory=Sum)  # what a cache without bound would miss

    def hit(self, missed: Sum) -> float:
        """Part of the tokens."""
        return 1 - missed.of_all(self.sample, self.asked, self.tokens) / self.tokens if self.tokens else 0.0

    @property
    def ideal(self) -> float:
        return self.hit(self.never)

    def effective(self, policy: str, part: float = ENOUGH) -> int | None:
        """The capacity in blocks that has this part of the ideal hits, on a straight line between the two points beside
        it; None where no point has it."""
        before = (0, 0.0)
        for point in sorted((p for p in self.points if p.policy == policy), key=lambda p: p.capacity):
            hits = self.hit(point.missed)
            if hits >= part * self.ideal:
                rise = hits - before[1]
                share = (part * self.ideal - before[1]) / rise if rise > 0 else 1.0
                return max(1, round(before[0] + share * (point.capacity - before[0])))
            before = (point.capacity, hits)
        return None


@dataclass(frozen=True)
class Routed:
    """One routing, with sharing and without. `busiest`: the most loaded replica's part of the even load."""

    routing: str
    sharing: Fleet
    alone: Fleet

    @property
    def busiest(self) -> float:
        given = self.sharing.given
        return max(given) * len(given) / sum(given) if sum(given) else 1.0


def census(opened: Opened, limit: int = FOLLOWED_BLOCKS) -> Census:
    found = Census(limit)
    for request in opened("counted"):
        found.count(request)
    return found


def curve(
    opened: Opened,
    sample: Sample,
    wanted: Sequence[tuple[str, int]],
    warm_up: int = 0,
    newcomers: Newcomers | None = None,
) -> Curve:
    """wanted: policies and capacities in blocks; warm_up: requests that are replayed and not counted."""
    caches = [(Point(policy, size), cache_of(policy, sample.blocks(size))) for policy, size in wanted]
    found, seen = Curve(sample, [point for point, _ in caches]), set[int]()
    for number, request in enumerate(opened("replayed in caches")):
        followed, counts = sample.follow(request), number >= warm_up
        length = len(followed.blocks)
        run = next((place for place, block in enumerate(followed.blocks) if block not in seen), length)
        seen.update(followed.blocks[run:])
        for point, cache in caches:
            hits = cache.request(followed.blocks)
            if counts:
                point.missed.add(followed, hits, length)
        if newcomers is not None:
            newcomers.request(followed)
        if counts:
            found.requests += 1
            found.tokens += request.tokens
            found.asked.add(followed, 0, length)
            found.never.add(followed, run, length)
    for point, cache in caches:
        point.evicted = round(cache.evicted / sample.rate)
    return found


def fleets(
    opened: Opened, sample: Sample, hardware: Hardware, routings: Sequence[str], warm_up: int = 0, began: float = 0.0
) -> list[Routed]:
    """began: the trace's time at which rates begin to be counted."""
    routers = [router(name, hardware.replicas) for name in routings]
    found = [
        Routed(
            name,
            Fleet(hardware, sample, sharing=True, began=began),
            Fleet(hardware, sample, sharing=False, began=began),
        )
        for name in routings
    ]
    for number, request in enumerate(opened("replayed in replicas")):
        followed = sample.follow(request)
        for each, routing in zip(found, routers, strict=True):
            replica = routing.route(followed)
            each.sharing.request(replica, followed, counts=number >= warm_up)
            each.alone.request(replica, followed, counts=number >= warm_up)
    return found
