"""What moving blocks costs those requests that are being served meanwhile: the engine's steps, beside it and without.

Steps in which the engine only decodes, by how many requests they serve (powers of two) and by what kvpool does beside:
a load, a store or nothing. Of each number of requests the mean with is compared with the mean without.
"""

from kvpool_agent.policy.faded import Faded

LOAD, STORE, QUIET = "load", "store", ""
NEEDED = 16.0  # steps of either kind, as far as they have not faded, before they are compared


class Interference:
    """Times in seconds of one clock."""

    def __init__(self) -> None:
        self._steps: dict[tuple[int, str], tuple[Faded, Faded]] = {}  # their number, their seconds

    def add(self, size: int, beside: str, steps: int, seconds: float, now: float) -> float:
        """So many steps took so long; the seconds that they lost to what was beside them, below 0 where they were
        faster than others."""
        counted = self._steps.setdefault((size, beside), (Faded(), Faded()))
        counted[0].add(steps, now)
        counted[1].add(seconds, now)
        quiet = self._quiet(size, now)
        return seconds - steps * quiet if beside != QUIET and quiet is not None else 0.0

    def part(self, beside: str, now: float) -> float:
        """The part of their time that steps lose beside this, 0 while too little is known; never below 0."""
        lost = taken = 0.0
        for (size, kind), (number, seconds) in self._steps.items():
            quiet, steps = self._quiet(size, now), number.at(now)
            if kind == beside and quiet is not None and steps >= NEEDED:
                taken += steps * quiet
                lost += seconds.at(now) - steps * quiet
        return max(0.0, lost / taken) if taken > 0 else 0.0

    def _quiet(self, size: int, now: float) -> float | None:
        """The mean of steps beside which there was nothing; None while there were too few."""
        number, seconds = self._steps.get((size, QUIET), (Faded(), Faded()))
        return seconds.at(now) / number.at(now) if number.at(now) >= NEEDED else None
