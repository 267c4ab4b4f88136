"""A part of a trace's blocks that stands for all of them, so that memory is bounded however long the trace is.

Blocks whose mixed id is below a bound are followed, in caches that are smaller by as much (Waldspurger et al., SHARDS,
FAST 2015); a chain without the others is a chain still. A first pass lowers the bound until no more than a fixed number
of distinct blocks is below it, so it also tells how many there are. The few blocks that many requests begin with would
spoil the sample by being in it or not: those are found in the first pass, too (Misra and Gries, 1982), and are followed
each for itself. Of the others a sample may have been asked for more or less often than all of them; how much that
matters for a figure is seen between groups of the sample, and taken into account (a regression estimate).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvpool_lab.recorded import Request

FOLLOWED_BLOCKS = 32_768
COMMON_PART = 1000  # a block is common if one of so many references is to it
COUNTERS = 4096
GROUPS = 32
COMMON = GROUPS  # the group of common blocks
_MASK = (1 << 64) - 1


def mixed(block: int) -> int:
    """64 bits that look random."""
    block = ((block & _MASK) ^ ((block & _MASK) >> 31)) * 0x9E3779B97F4A7C15 & _MASK
    block = (block ^ (block >> 29)) * 0xBF58476D1CE4E5B9 & _MASK
    return block ^ (block >> 32)


@dataclass(frozen=True)
class Followed:
    """The followed blocks of one request. `ends`: tokens of the prompt up to each one's end; `sizes`: its tokens;
    `groups`: where they are counted."""

    request: Request
    blocks: list[int]
    ends: list[int]
    sizes: list[int]
    groups: list[int]


@dataclass(frozen=True)
class Sample:
    """Of `distinct` blocks about `rate` are followed, and the common ones."""

    rate: float
    distinct: int
    common: frozenset[int] = frozenset()

    def blocks(self, count: float) -> int:
        """The size of a cache in the sample, for one of so many blocks."""
        common = min(count, len(self.common))
        return max(1, round(common + (count - common) * self.rate))

    def weight(self, block: int) -> float:
        """How many blocks a followed one stands for."""
        return 1.0 if block in self.common else 1 / self.rate

    def follow(self, request: Request) -> Followed:
        size, bound, common = request.block_tokens, int(self.rate * (_MASK + 1)), self.common
        blocks, ends, sizes, groups = [], [], [], []
        for place, block in enumerate(request.blocks):
            if block in common:
                group = COMMON
            else:
                number = mixed(block)
                if number >= bound:
                    continue
                group = number % GROUPS
            end = min((place + 1) * size, request.tokens)
            blocks.append(block)
            ends.append(end)
            sizes.append(end - min(place * size, request.tokens))
            groups.append(group)
        return Followed(request, blocks, ends, sizes, groups)


class Sum:
    """Tokens of followed blocks, by group."""

    def __init__(self) -> None:
        self.groups = [0] * (GROUPS + 1)

    def add(self, followed: Followed, begin: int, end: int) -> None:
        """The tokens of the followed blocks from `begin` to `end`."""
        groups = self.groups
        for group, size in zip(followed.groups[begin:end], followed.sizes[begin:end], strict=True):
            groups[group] += size

    def of_all(self, sample: Sample, asked: "Sum", tokens: int) -> float:
        """What the sum would be over all blocks. asked: the same requests' followed blocks, all of them; tokens: of
        these requests' prompts."""
        mine, all_of = self.groups[:GROUPS], asked.groups[:GROUPS]
        scaled = sum(mine) / sample.rate
        if sample.rate < 1:
            lacking = tokens - asked.groups[COMMON] - sum(all_of) / sample.rate
            scaled += _slope(all_of, mine) * lacking
        return min(float(tokens), max(0.0, scaled + self.groups[COMMON]))


def _slope(x: Sequence[int], y: Sequence[int]) -> float:
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((each - mean_x) ** 2 for each in x)
    together = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return min(1.0, max(0.0, together / spread)) if spread else 0.0


@dataclass
class Census:
    """The first pass: what the trace holds, and how large a part of it can be followed. Times in seconds."""

    limit: int = FOLLOWED_BLOCKS
    requests: int = 0
    tokens: int = 0
    block_refs: int = 0
    block_tokens: int = 0
    began: float = 0.0
    ended: float = 0.0
    kinds: set[str] = field(default_factory=set)
    _bound: int = _MASK + 1
    _below: set[int] = field(default_factory=set)
    _often: dict[int, int] = field(default_factory=dict)

    def count(self, request: Request) -> None:
        if not self.requests:
            self.began, self.block_tokens = request.at, request.block_tokens
        self.requests += 1
        self.tokens += request.tokens
        self.block_refs += len(request.blocks)
        self.ended = max(self.ended, request.at)
        self.kinds.add(request.kind)
        bound, often = self._bound, self._often
        for block in request.blocks:
            number = mixed(block)
            if number < bound:
                self._below.add(number)
            often[block] = often.get(block, 0) + 1
            if len(often) > COUNTERS:
                self._often = often = {each: count - 1 for each, count in often.items() if count > 1}
        while len(self._below) > self.limit:
            self._bound = self._bound * 3 // 4
            self._below = {each for each in self._below if each < self._bound}

    def sample(self) -> Sample:
        rate = self._bound / (_MASK + 1)
        distinct = round(len(self._below) / rate)
        least = self.block_refs / COMMON_PART
        common = frozenset(block for block, count in self._often.items() if count > least)
        return Sample(rate, distinct, common)

    @property
    def seconds(self) -> float:
        return max(0.0, self.ended - self.began)
