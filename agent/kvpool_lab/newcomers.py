"""What a hot set of some size would do for a replica that joins: by size, and by how blocks are ranked for it.

At some moments of the trace a newcomer gets its even part of the requests by chance, for a while. It begins with the
blocks that rank first: by *popularity*, the heat by which agents rank (kvpool_agent.policy.heat), or by *recency*.
Beside them a newcomer with nothing, and one with all that the trace has shown so far. What it served itself it has,
too.
"""

import random
from dataclasses import dataclass, field

from kvpool_agent.policy.heat import HeatTable
from kvpool_lab.sample import Followed, Sample, Sum

POPULARITY, RECENCY = "popularity", "recency"
MOMENTS = 8
REQUESTS_EACH = 20
SECONDS_EACH = 60.0
MOST = 0.5  # of what a full warm-up gains


@dataclass
class Warmed:
    """`blocks`: the size of the hot set, None for all that was seen; missed tokens."""

    ranking: str
    blocks: int | None
    missed: Sum = field(default_factory=Sum)


@dataclass
class Gains:
    """What newcomers had, all moments together."""

    sample: Sample
    tokens: int = 0
    asked: Sum = field(default_factory=Sum)
    warmed: list[Warmed] = field(default_factory=list)

    def hit(self, each: Warmed) -> float:
        """Part of the tokens."""
        return 1 - each.missed.of_all(self.sample, self.asked, self.tokens) / self.tokens if self.tokens else 0.0

    @property
    def cold(self) -> Warmed:
        return next(each for each in self.warmed if each.blocks == 0)

    @property
    def full(self) -> Warmed:
        return next(each for each in self.warmed if each.blocks is None)

    def part(self, each: Warmed) -> float:
        """Of what a full warm-up gains."""
        possible = self.hit(self.full) - self.hit(self.cold)
        return (self.hit(each) - self.hit(self.cold)) / possible if possible > 0 else 0.0

    def smallest(self, ranking: str, part: float = MOST) -> Warmed | None:
        """The smallest hot set that has this part of the gain."""
        sizes = [each for each in self.warmed if each.ranking == ranking and each.blocks]
        return next((each for each in sorted(sizes, key=lambda e: e.blocks or 0) if self.part(each) >= part), None)


class Newcomers:
    """Sees all requests in order. sizes: of hot sets, in blocks."""

    def __init__(self, sample: Sample, requests: int, replicas: int, sizes: list[int]) -> None:
        self.gains = Gains(sample, warmed=[Warmed("", 0), Warmed("", None)])
        self.gains.warmed += [Warmed(ranking, size) for ranking in (POPULARITY, RECENCY) for size in sizes]
        self._sample, self._replicas = sample, replicas
        self._every = max(1, int(requests * 0.8) // MOMENTS)
        self._next = int(requests * 0.2)
        self._heat = HeatTable(4 * max(1, sample.blocks(sample.distinct)))
        self._recent: dict[int, tuple[int, int]] = {}  # block: minus the number of its last request, depth
        self._chance = random.Random(1)
        self._number = 0
        self._sets: list[tuple[Warmed, set[int]]] = []
        self._own: set[int] = set()
        self._until = (0, 0.0)

    def request(self, followed: Followed) -> None:
        at = followed.request.at
        if self._number == self._next:
            self._join(at)
        if self._sets and self._number >= self._until[0] and at >= self._until[1]:
            self._sets = []
        if self._sets and self._chance.random() < 1 / (self._replicas + 1):
            self._serve(followed)
        self._heat.count([_key(block) for block in followed.blocks], at)
        for depth, block in enumerate(followed.blocks):
            self._recent[block] = (-self._number, depth)
        self._number += 1

    def _join(self, at: float) -> None:
        self._next += self._every
        self._until = (self._number + REQUESTS_EACH * (self._replicas + 1), at + SECONDS_EACH)
        self._own = set()
        names = {_key(block): block for block in self._recent}
        hot = [names[each.key] for each in self._heat.hottest(names, at, len(names))]
        recent = sorted(self._recent, key=self._recent.__getitem__)
        ranked = {POPULARITY: hot, RECENCY: recent, "": recent}
        self._sets = [(each, self._first(ranked[each.ranking], each.blocks)) for each in self.gains.warmed]

    def _first(self, ranked: list[int], blocks: int | None) -> set[int]:
        """The first of the list that stand for so many blocks."""
        if blocks is None:
            return set(ranked)
        first, room = set[int](), float(blocks)
        for block in ranked:
            room -= self._sample.weight(block)
            if room < -0.5:
                break
            first.add(block)
        return first

    def _serve(self, followed: Followed) -> None:
        self.gains.tokens += followed.request.tokens
        self.gains.asked.add(followed, 0, len(followed.blocks))
        for each, warm in self._sets:
            held = next((i for i, b in enumerate(followed.blocks) if b not in warm and b not in self._own), None)
            if held is not None:
                each.missed.add(followed, held, len(followed.blocks))
        self._own.update(followed.blocks)


def _key(block: int) -> bytes:
    return block.to_bytes(9, "big", signed=True)
