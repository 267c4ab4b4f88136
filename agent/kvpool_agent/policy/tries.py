"""When a way that is refused is tried again: after some seconds, then after twice as long each time, up to a minute.

A try takes bytes and a little of the processor from requests that gain nothing by it, so a way that stays slow is tried
ever more rarely. One that pays again begins anew: what was slow for a moment may be so once more. So does one whose try
was fast: it takes several such until what was measured before counts no more.
"""

from collections.abc import Iterable

TRY_SECONDS, LONGEST_TRY_SECONDS = 5.0, 60.0  # between two tries of a way
MAX_TRIES = 256  # ways that are remembered


class Tries:
    """By the ways' names. Times in seconds of one clock; not for several threads at a time."""

    def __init__(self) -> None:
        self._tried: dict[str, tuple[float, float]] = {}  # when, and how long not again

    def due(self, way: str, now: float) -> bool:
        """Whether it may be tried now; then it counts as tried."""
        at, pause = self._tried.get(way, (float("-inf"), 0.0))
        if now - at < pause:
            return False
        self._tried.pop(way, None)
        self._tried[way] = now, min(max(TRY_SECONDS, 2 * pause), LONGEST_TRY_SECONDS)
        while len(self._tried) > MAX_TRIES:
            self._tried.pop(next(iter(self._tried)))
        return True

    def pay(self, ways: Iterable[str]) -> None:
        """They are not refused now, or seem to be worth it again."""
        for way in ways:
            if way in self._tried:
                self._tried[way] = self._tried[way][0], TRY_SECONDS
