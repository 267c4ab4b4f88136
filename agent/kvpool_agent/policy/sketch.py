"""Quantiles of what was measured lately, within 2 % of each, in bounded memory.

DDSketch (Masson, Rim, Lee, VLDB 2019): counts in buckets whose borders grow by a constant factor, so that the error of
a quantile is relative. The library `ddsketch` keeps everything alike for ever; what a link or an engine costs changes,
so here an observation weighs half as much after `HALF_COUNT` others, and after `HALF_SECONDS` (forward decay: Cormode,
Shkapenyuk, Srivastava, Xu, ICDE 2009: newcomers weigh more, and nothing has to be touched as time passes).
"""

import math

ERROR = 0.02  # of a quantile, relative
HALF_COUNT = 16.0  # about the last 23 observations count
HALF_SECONDS = 10.0
LEAST = 1e-9  # what is not above is 0
MOST = 1e15
RESCALE_AT = 40.0  # powers of two between the lightest and the heaviest
_GAMMA = (1 + ERROR) / (1 - ERROR)
_LOG_GAMMA = math.log(_GAMMA)
_ZERO = -(1 << 31)


class Sketch:
    """Not for negative values. `count`: observations ever made. Times in seconds of one clock."""

    def __init__(self, half_count: float = HALF_COUNT, half_seconds: float = HALF_SECONDS) -> None:
        self.count = 0
        self._half_count, self._half_seconds = half_count, half_seconds
        self._weights: dict[int, float] = {}
        self._power = 0.0  # of two, that the next observation weighs
        self._at: float | None = None

    def add(self, value: float, now: float) -> None:
        if self._at is not None:
            self._power += 1.0 / self._half_count + max(0.0, now - self._at) / self._half_seconds
        self._at = now
        if self._power > RESCALE_AT:
            self._rescale()
        bucket = _ZERO if value <= LEAST else math.ceil(math.log(min(value, MOST)) / _LOG_GAMMA)
        self._weights[bucket] = self._weights.get(bucket, 0.0) + 2.0**self._power
        self.count += 1

    def _rescale(self) -> None:
        """What weighs nothing any more goes."""
        factor = 2.0**-self._power
        self._weights = {bucket: w * factor for bucket, w in self._weights.items() if w * factor > factor * 2.0**8}
        self._power = 0.0

    def quantile(self, part: float) -> float | None:
        """The value that this part of what was observed lately does not exceed; None where there is nothing."""
        if not self._weights:
            return None
        wanted = part * sum(self._weights.values())
        buckets = sorted(self._weights)
        seen, found = 0.0, buckets[-1]
        for bucket in buckets:
            seen += self._weights[bucket]
            if seen >= wanted:
                found = bucket
                break
        return 0.0 if found == _ZERO else float(2 * _GAMMA**found / (_GAMMA + 1))
