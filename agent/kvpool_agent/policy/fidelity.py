"""Whether an answer that went on from another replica's blocks is the one that computing gives.

Two answers are compared by the log-probabilities of the likeliest next tokens: the total variation between the two
distributions, as far as these tokens show it, so that tokens which one of them does not name never make it larger than
it is. Computing twice does not give equal numbers either: other batch shapes round differently. So what was computed is
asked for again, as a prefix that the engine finds in its own cache, in the very shape in which the hit was. That is
what the hit is measured against, and how far it lies from the computed answer is what the engine differs from itself.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

LIKELIEST = 20  # tokens of each answer: as many as engines give by default
TOLERATED = 8e-4  # total variation
NOISE_FACTOR = 2.0  # so many times as far as the engine lies from itself an answer may lie from its own

Chances = Mapping[str, float]  # log-probabilities by token


@dataclass(frozen=True)
class Verdict:
    """`variation`: between the hit and what was computed, `noise`: between what was computed and the same from the
    engine's own cache; both from 0 to 1."""

    variation: float
    noise: float

    @property
    def differs(self) -> bool:
        return self.variation > max(TOLERATED, NOISE_FACTOR * self.noise)


def judge(hit: Chances, computed: Chances, again: Chances) -> Verdict:
    """hit: the answer from another replica's blocks; computed: without any cache; again: from what that has left in the
    engine's own cache."""
    return Verdict(variation(hit, again), variation(computed, again))


def variation(one: Chances, other: Chances) -> float:
    """Half the sum of the differences, over the tokens that either names. One that the other does not name is at most
    as likely there as the least likely of those that it does."""
    chances = [{token: math.exp(min(0.0, log)) for token, log in each.items()} for each in (one, other)]
    least = [min(each.values(), default=1.0) for each in chances]
    total = 0.0
    for token in chances[0].keys() | chances[1].keys():
        first, second = (each.get(token) for each in chances)
        if first is not None and second is not None:
            total += abs(first - second)
        elif first is not None:
            total += max(0.0, first - least[1])
        elif second is not None:
            total += max(0.0, second - least[0])
    return total / 2
