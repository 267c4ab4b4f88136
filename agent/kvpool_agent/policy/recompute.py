"""What it costs the engine to compute tokens of a prompt, by their number and by how deep in the prompt they lie.

A prompt of `tokens` of which `held` are in the cache took so many seconds from its first step to its first token. That
is a start, a cost for each token, and one for each pair of a token and one before it, which attention looks at:

    seconds = start + linear * n + pairs * n * (held + n / 2),  n = tokens - held

The three are fitted to what was measured lately, by least squares of the relative error; none is negative. How far off
single requests are is kept as quantiles of measured / fitted, which hold whatever the engine does beside them.
"""

import itertools
from collections.abc import Sequence

from kvpool_agent.policy.sketch import Sketch

HALF_COUNT, HALF_SECONDS = 64.0, 600.0  # a fit needs more requests, and an engine changes less, than a link
NEEDED = 2  # requests before anything is said
LEAST_SECONDS = 1e-6
SIMPLER = 1.02  # a fit with more terms must be better than this
_TERMS = ((1,), (1, 2), (0, 1), (0, 1, 2))  # simpler ones first; a cost for each token is always one of them

Row = tuple[float, float, float]


class Recompute:
    """Times in seconds of one clock."""

    def __init__(self) -> None:
        self._power, self._at = 0.0, 0.0
        self._matrix = [[0.0] * 3 for _ in range(3)]
        self._right = [0.0] * 3
        self._square = 0.0
        self._fit: Row | None = None
        self.ratios = Sketch(HALF_COUNT, HALF_SECONDS)
        self.count = 0
        self.longest = 0  # tokens computed for one request

    def measured(self, held: int, tokens: int, seconds: float, now: float) -> None:
        """A prompt of `tokens`, of which the cache had `held`, took `seconds` to its first token."""
        if tokens <= held or seconds <= 0:
            return
        if self._fit is not None:
            self.ratios.add(seconds / max(_cost(self._fit, held, tokens), LEAST_SECONDS), now)
        fade = 0.5 ** (1 / HALF_COUNT + max(0.0, now - self._at) / HALF_SECONDS) if self.count else 0.0
        row, weight = _row(held, tokens), 1.0 / max(seconds, LEAST_SECONDS) ** 2
        for i, j in itertools.product(range(3), repeat=2):
            self._matrix[i][j] = fade * self._matrix[i][j] + weight * row[i] * row[j]
        for i in range(3):
            self._right[i] = fade * self._right[i] + weight * row[i] * seconds
        self._square = fade * self._square + 1.0
        self._at = now
        self.count += 1
        self.longest = max(self.longest, tokens - held)
        self._fit = self._fitted()
        if self.count == 1 and self._fit is not None:
            self.ratios.add(seconds / max(_cost(self._fit, held, tokens), LEAST_SECONDS), now)

    def seconds(self, start: int, end: int) -> float | None:
        """The median of what computing tokens [start, end) of a longer prompt adds; None while too little is known.
        Depths beyond those measured are extrapolated."""
        ratio = self.ratios.quantile(0.5)
        if self._fit is None or ratio is None or self.count < NEEDED:
            return None
        return ratio * (_cost(self._fit, start, end) - self._fit[0]) if end > start else 0.0

    @property
    def fit(self) -> Row:
        """Seconds: at the start, for each token, for each pair."""
        return self._fit or (0.0, 0.0, 0.0)

    def _fitted(self) -> Row | None:
        best, least = None, float("inf")
        for terms in _TERMS:
            found = _solved([[self._matrix[i][j] for j in terms] for i in terms], [self._right[i] for i in terms])
            if found is None or min(found) < 0:
                continue
            fit = [0.0] * 3
            for i, value in zip(terms, found, strict=True):
                fit[i] = value
            error = max(self._error(fit), 1e-9)
            if error * SIMPLER < least:
                best, least = (fit[0], fit[1], fit[2]), error
        return best

    def _error(self, fit: Sequence[float]) -> float:
        crossed = sum(a * b for a, b in zip(fit, self._right, strict=True))
        squared = sum(fit[i] * fit[j] * self._matrix[i][j] for i, j in itertools.product(range(3), repeat=2))
        return self._square - 2 * crossed + squared


def _row(held: int, tokens: int) -> Row:
    n = tokens - held
    return 1.0, float(n), n * (held + n / 2)


def _cost(fit: Row, held: int, tokens: int) -> float:
    return sum(a * b for a, b in zip(fit, _row(held, tokens), strict=True))


def _solved(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """By elimination; None where the equations leave something open."""
    size = len(right)
    scale = [matrix[i][i] for i in range(size)]
    rows = [[*matrix[i], right[i]] for i in range(size)]
    for i in range(size):
        pivot = rows[i][i]
        if pivot <= 1e-9 * scale[i] or not pivot:
            return None
        for below in range(i + 1, size):
            factor = rows[below][i] / pivot
            rows[below] = [a - factor * b for a, b in zip(rows[below], rows[i], strict=True)]
    found = [0.0] * size
    for i in reversed(range(size)):
        found[i] = (rows[i][size] - sum(rows[i][j] * found[j] for j in range(i + 1, size))) / rows[i][i]
    return found
