"""What one way of bringing blocks in has cost lately: another member, the own disk, or the own arena.

Four parts, each measured where it happens: the wait before the first byte (a place in the bounds of both ends, the
source's answer), bytes per second from then on, and what lies between the bytes in the arena and the request's first
step: the engine's extra steps, the copy into its host pool and from there to its device. The last one belongs to the
engine and grows with the size, so it is kept by powers of two.
"""

from kvpool_agent.policy.sketch import Sketch

LATE, USUAL, SLOW_RATE = 0.95, 0.5, 0.05


class Path:
    """Seconds and bytes; times of one clock. `moved`: transfers that were measured."""

    def __init__(self) -> None:
        self.queue = Sketch()
        self.rate = Sketch()
        self.moved = 0

    def measured(self, queue: float, size: int, seconds: float, now: float) -> None:
        """`size` bytes came in `seconds` from the first of them, which was waited for so long."""
        self.queue.add(queue, now)
        self.rate.add(size / max(seconds, 1e-6), now)
        self.moved += 1

    def seconds(self, size: int) -> float | None:
        """The 95th percentile of wait and transfer of so many bytes; None where nothing is known."""
        queue, rate = self.queue.quantile(LATE), self.rate.quantile(SLOW_RATE)
        if queue is None or not rate:
            return None
        return queue + size / rate


class BySize:
    """Seconds by size, in powers of two of bytes."""

    def __init__(self) -> None:
        self._sketches: dict[int, Sketch] = {}

    def add(self, size: int, seconds: float, now: float) -> None:
        self._sketches.setdefault(max(size, 1).bit_length(), Sketch()).add(seconds, now)

    def seconds(self, size: int, part: float) -> float | None:
        """Of the nearest size that was measured: of a smaller one as if it grew alike, of a larger one as it was."""
        if not self._sketches:
            return None
        wanted = max(size, 1).bit_length()
        nearest = min(self._sketches, key=lambda known: (abs(known - wanted), known < wanted))
        found = self._sketches[nearest].quantile(part)
        return None if found is None else found * 2.0 ** max(0, wanted - nearest)

    def largest(self) -> Sketch | None:
        return self._sketches[max(self._sketches)] if self._sketches else None
