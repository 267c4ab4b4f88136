"""`kvpool plan`: what sharing would do for recorded traffic on given hardware, and which pool to apply.

Everything is found by the agents' own policies on a sample of the trace's blocks (kvpool_lab.planner).
"""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from kvpool_cli.break_even import Prices
from kvpool_contract.config import DEFAULT_EVICTION, GDSF, LRU, S3FIFO
from kvpool_lab.costs import Costs
from kvpool_lab.fleet import Hardware
from kvpool_lab.newcomers import POPULARITY, RECENCY, Gains, Newcomers, Warmed
from kvpool_lab.planner import Curve, Routed, census, curve, fleets
from kvpool_lab.recorded import Request, TraceError
from kvpool_lab.replay import S3FIFO_BLOCKWISE
from kvpool_lab.sample import FOLLOWED_BLOCKS, Census, Sample
from kvpool_lab.traces import read
from kvpool_lab.verdict import Verdict, judge
from kvpool_operator.desired.quantity import QuantityError, parse_quantity

POLICIES = (GDSF, LRU, S3FIFO)  # that a pool can have
CHOICES = (*POLICIES, S3FIFO_BLOCKWISE)
CAPACITIES = ("1%", "2%", "5%", "10%", "20%", "50%")
TOLD_EVERY_SECONDS = 5.0
BETTER = 0.005  # by so much of the tokens another policy than the default one has to be
SMALLEST_HOT_SET = 2**26


class PlanError(ValueError):
    """The plan can't be made; the message names the option and the fix."""


@dataclass(frozen=True)
class Wanted:
    """`capacities`: quantities of bytes (8Gi), or percent of the trace's distinct blocks (5%), of all replicas
    together; `engine_cache`, `arena`: of each replica, arena empty: what the effective capacity asks for. `routings`:
    the one in use first. `prices`: None where what computing and loading cost is not known."""

    trace: Path
    policies: Sequence[str] = POLICIES
    capacities: Sequence[str] = CAPACITIES
    bytes_per_token: int = 131072
    block_tokens: int = 512
    warm_up_percent: int = 0
    replicas: int = 4
    routings: Sequence[str] = ()
    engine_cache: str = "0"
    arena: str = ""
    prices: Prices | None = None
    newcomers: int = 1
    join_seconds: float = 60.0
    follow: int = FOLLOWED_BLOCKS

    @property
    def costs(self) -> Costs | None:
        """By the way in use."""
        known = self.prices
        return None if known is None else Costs(known.curve, known.ways[0], known.bytes_per_token)


@dataclass(frozen=True)
class Planned:
    """The capacities as they were written, each with its blocks; and what was found. `policy`: the one to choose."""

    wanted: Wanted
    held: Census
    sample: Sample
    block_bytes: int
    capacities: Sequence[tuple[str, int]]
    curve: Curve
    gains: Gains
    policy: str
    effective: int | None
    arena_blocks: int
    routed: Sequence[Routed]
    verdicts: Sequence[Verdict] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """That were counted; 0 where the trace has no times."""
        return self.held.seconds * (100 - self.wanted.warm_up_percent) / 100

    @property
    def hot_set(self) -> Warmed | None:
        """The smallest that has half of a full warm-up's gain, ranked as serves better; None where none that fits an
        arena does."""
        found = [each for ranking in (POPULARITY, RECENCY) if (each := self.gains.smallest(ranking)) is not None]
        best = min(found, key=lambda each: (each.blocks, -self.gains.hit(each)), default=None)
        return best if best is not None and (best.blocks or 0) <= self.arena_blocks else None


class _Told:
    """Says on stderr how far a long reading is."""

    def __init__(self, what: str) -> None:
        self._what, self._last = what, time.monotonic()

    def __call__(self, part: float) -> None:
        if time.monotonic() - self._last >= TOLD_EVERY_SECONDS:
            self._last = time.monotonic()
            print(f"kvpool plan: {self._what}, {100 * part:.0f} % of the trace", file=sys.stderr, flush=True)


def plan(wanted: Wanted) -> Planned:
    """Raises PlanError."""

    def opened(what: str) -> Iterable[Request]:
        return read(wanted.trace, wanted.block_tokens, _Told(what))

    try:
        return _plan(wanted, opened)
    except TraceError as error:
        raise PlanError(str(error)) from None


def _plan(wanted: Wanted, opened: Callable[[str], Iterable[Request]]) -> Planned:
    held = census(opened, wanted.follow)
    sample, block_bytes = held.sample(), held.block_tokens * wanted.bytes_per_token
    capacities = [(each, _blocks(each, sample.distinct, block_bytes)) for each in wanted.capacities]
    warm_up = held.requests * wanted.warm_up_percent // 100
    pairs = [(policy, blocks) for _, blocks in capacities for policy in wanted.policies]
    newcomers = Newcomers(sample, held.requests, wanted.replicas, _hot_sets(sample, block_bytes))
    found = curve(opened, sample, pairs, warm_up, newcomers)
    policy = _best(found, wanted.policies)
    effective = found.effective(policy)
    arena_blocks = (
        _blocks(wanted.arena, sample.distinct, block_bytes, "--arena")
        if wanted.arena
        else max(1, -(-(effective or max(blocks for _, blocks in capacities)) // wanted.replicas))
    )
    engine_blocks = _bytes(wanted.engine_cache, "--engine-cache") // block_bytes
    hardware = Hardware(wanted.replicas, engine_blocks, arena_blocks, policy, wanted.costs)
    routed = fleets(opened, sample, hardware, wanted.routings, warm_up, held.began) if wanted.routings else []
    planned = Planned(
        wanted, held, sample, block_bytes, capacities, found, newcomers.gains, policy, effective, arena_blocks, routed
    )
    if wanted.costs is None or not routed:
        return planned
    kinds = sorted(routed[0].sharing.kinds)
    return replace(planned, verdicts=[judge(kind, routed, wanted.costs, planned.seconds) for kind in kinds])


def _best(found: Curve, policies: Sequence[str]) -> str:
    """The default policy, unless another one that was asked about and that a pool can have is better at the capacities
    together."""
    mean = {
        policy: sum(hits) / len(hits)
        for policy in policies
        if policy in POLICIES and (hits := [found.hit(p.missed) for p in found.points if p.policy == policy])
    }
    best = max(mean, key=mean.__getitem__, default=DEFAULT_EVICTION)
    return best if mean.get(best, 0.0) > mean.get(DEFAULT_EVICTION, 0.0) + BETTER else DEFAULT_EVICTION


def _hot_sets(sample: Sample, block_bytes: int) -> list[int]:
    """Sizes in blocks: doubling, from 64 MiB or a hundredth of what the trace has up to all of it."""
    sizes, size = [], max(1, min(SMALLEST_HOT_SET // block_bytes, sample.distinct // 100))
    while size < 2 * max(1, sample.distinct):
        sizes.append(size)
        size *= 2
    return sizes


def _blocks(capacity: str, distinct: int, block_bytes: int, option: str = "--capacity") -> int:
    if capacity.endswith("%"):
        try:
            blocks = round(distinct * Fraction(capacity[:-1]) / 100)
        except (ValueError, ZeroDivisionError):
            raise PlanError(f"{option} {capacity}: write percent of the distinct blocks, such as 5%") from None
    else:
        blocks = _bytes(capacity, option) // block_bytes
    if blocks < 1:
        raise PlanError(f"{option} {capacity}: it has no room for one block of {block_bytes} bytes; raise it")
    return blocks


def _bytes(quantity: str, option: str) -> int:
    try:
        return parse_quantity(quantity)
    except QuantityError as error:
        raise PlanError(f"{option} {quantity}: {error}") from None
