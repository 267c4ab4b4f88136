"""What every benchmark here does with its figures: medians over interleaved rounds, and each round's ratios.

Two ways are compared within a round, minutes apart nothing is: a machine's pace drifts by more than what is sought. A
way that runs against itself (A/A) in the same rounds shows how much of a ratio is noise.
"""

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


def orders(names: Sequence[str], rounds: int, seed: int = 1) -> Iterator[list[str]]:
    """An order of the ways for each round, drawn anew: what one leaves behind must not always meet the same next."""
    chance = random.Random(seed)
    for _ in range(rounds):
        yield chance.sample(list(names), len(names))


def p99(values: Sequence[float]) -> float:
    """The value that 99 of 100 don't exceed; of fewer than a hundred, the greatest."""
    return quantile(values, 0.99)


def quantile(values: Sequence[float], part: float) -> float:
    """The value that this part of them lies below."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


@dataclass(frozen=True)
class Ratio:
    """Of a quantile of two series, and between what 95 of 100 such ratios lie when their values are drawn anew."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f} to {self.high:.2f})"


def quantile_ratio(above: Sequence[float], below: Sequence[float], part: float, draws: int = 1000) -> Ratio:
    """How far a quantile of one series lies above that of another one, and how sure that is."""
    chance = random.Random(1)

    def drawn(values: Sequence[float]) -> float:
        return quantile(chance.choices(values, k=len(values)), part)

    ratios = [drawn(above) / drawn(below) for _ in range(draws)]
    return Ratio(quantile(above, part) / quantile(below, part), quantile(ratios, 0.025), quantile(ratios, 0.975))


def ratio(above: Sequence[float], below: Sequence[float]) -> str:
    """Median and quartiles of the rounds' ratios above / below."""
    ratios = sorted(a / b for a, b in zip(above, below, strict=True))
    low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
    return f"{statistics.median(ratios):.3f} (quartiles {low:.3f} to {high:.3f})"


def timed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def run(ways: Mapping[str, Callable[[], T]], rounds: int, warm_up: int = 1) -> dict[str, list[T]]:
    """Every way once a round; what each returned, without the rounds that warm up."""
    found: dict[str, list[T]] = {name: [] for name in ways}
    for number, names in enumerate(orders(list(ways), rounds + warm_up)):
        for name in names:
            figure = ways[name]()
            if number >= warm_up:
                found[name].append(figure)
    return found


def machine() -> str:
    """One line on what the figures were taken on, and on what else ran there."""
    load = os.getloadavg()
    return f"{os.cpu_count()} cores, load average {load[0]:.1f} over the last minute, {load[1]:.1f} over five"
