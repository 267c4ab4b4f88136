"""What computing a prefix takes and what loading it takes: given in numbers, or measured at an engine."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_TOKENS = 1 << 20


@dataclass(frozen=True)
class PrefillCurve:
    """Seconds to compute the first n tokens of a prompt, by points (tokens, seconds), the lengths growing. In between
    a straight line; beyond the last point the last slope."""

    points: Sequence[tuple[float, float]]

    def seconds(self, tokens: float, after: float = 0.0) -> float:
        """For `tokens` behind `after` tokens that are there already: deeper tokens look back at more."""
        return max(0.0, self._first(after + tokens) - self._first(after))

    def _first(self, tokens: float) -> float:
        points = [(0.0, 0.0), *self.points]
        pairs = list(itertools.pairwise(points))
        (x0, y0), (x1, y1) = next((pair for pair in pairs if tokens <= pair[1][0]), pairs[-1])
        return y0 + (y1 - y0) * (tokens - x0) / (x1 - x0)


def steady(tokens_per_second: float) -> PrefillCurve:
    """A prefill whose cost per token is the same at any depth."""
    return PrefillCurve([(LONGEST_TOKENS, LONGEST_TOKENS / tokens_per_second)])


@dataclass(frozen=True)
class Path:
    """One way from a replica to a block: seconds before the first byte, then bytes per second."""

    name: str
    bytes_per_second: float
    latency: float = 0.0

    def seconds(self, count: float) -> float:
        """To load so many bytes."""
        return self.latency + count / self.bytes_per_second


@dataclass(frozen=True)
class Costs:
    """`path` is the way between replicas."""

    curve: PrefillCurve
    path: Path
    bytes_per_token: int
    margin: float = 1.2

    def pays(self, tokens: float, after: float) -> bool:
        """Whether loading takes less than computing, with the margin."""
        return self.path.seconds(tokens * self.bytes_per_token) * self.margin < self.curve.seconds(tokens, after)

    def saved(self, tokens: float, after: float) -> float:
        """Seconds, negative where loading takes longer."""
        return self.curve.seconds(tokens, after) - self.path.seconds(tokens * self.bytes_per_token)


def break_even_tokens(curve: PrefillCurve, path: Path, bytes_per_token: int) -> int | None:
    """The shortest prefix that is loaded sooner than it is computed; None where none is."""

    def pays(tokens: int) -> bool:
        return path.seconds(tokens * bytes_per_token) < curve.seconds(tokens)

    above = next((1 << power for power in range(LONGEST_TOKENS.bit_length()) if pays(1 << power)), None)
    if above is None:
        return None
    below = above // 2
    while above - below > 1:
        middle = (above + below) // 2
        above, below = (middle, below) if pays(middle) else (above, middle)
    return above


def break_even_bandwidth(curve: PrefillCurve, latency: float, bytes_per_token: int, tokens: int) -> float | None:
    """Bytes per second at which a prefix of this length takes as long to load as to compute; None where the latency
    alone is longer."""
    left = curve.seconds(tokens) - latency
    return tokens * bytes_per_token / left if left > 0 else None
