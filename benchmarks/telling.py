"""How well the time of one answer tells which of two questions was asked, as an attacker would ask it.

The area under the ROC curve is 0.5 where it can't. z is its distance from 0.5 in standard errors. Power: the least
delay, added to one way's times, that is found at z > 3 in 95 of 100 resamplings of the run.
"""

import bisect
import math
import random
import statistics
from collections.abc import Mapping, Sequence

import rounds

FOUND_AT, SURE = 3.0, 95
RESAMPLES, RESAMPLED = 100, 4000


def area(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Area under the ROC curve, and its distance from 0.5 in standard errors."""
    order = sorted(one)
    below = sum(bisect.bisect_left(order, x) + bisect.bisect_right(order, x) for x in other) / 2
    found = below / (len(one) * len(other))
    error = math.sqrt((len(one) + len(other) + 1) / (12 * len(one) * len(other)))
    return found, (found - 0.5) / error


def least_delay(times: Sequence[float], samples: int) -> float:
    """Seconds that would have been found with so many samples: searched with fewer, for whose error it is scaled."""
    chance = random.Random(1)

    def is_found(delay: float) -> bool:
        found = 0
        for _ in range(RESAMPLES):
            one = chance.choices(times, k=RESAMPLED)
            other = [x + delay for x in chance.choices(times, k=RESAMPLED)]
            found += area(one, other)[1] * math.sqrt(samples / RESAMPLED) > FOUND_AT
        return found >= SURE * RESAMPLES // 100

    low, high = 0.0, statistics.median(times)
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high


def report(found: Mapping[str, Sequence[float]], compared: Sequence[tuple[str, str]], delayed: str) -> None:
    """Prints the times of all ways, the ways that are compared, and the power of a comparison with `delayed`."""
    width = max(map(len, found))
    for name, times in found.items():
        middle, late = statistics.median(times), rounds.p99(times)
        print(f"  {name:<{width}} median {middle * 1e6:8.1f} us   p99 {late * 1e6:8.1f} us")
    for one, other in compared:
        where, z = area(found[one], found[other])
        print(f"  {one} against {other:<{width}} area {where:.4f}   z {z:+6.2f}")
    least = least_delay(found[delayed], len(found[delayed]))
    print(f"  power: a delay of {least * 1e6:.2f} us would have been found", flush=True)
