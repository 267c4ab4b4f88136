"""A circuit breaker for one peer: whether it may be used as a source now, by what it has done before.

A peer that fails or crawls costs every request its wait, though its pings may be answered all the while. After a few
failures in a row, or one wait for nothing until a deadline, the breaker opens: the peer is no source until a pause is
over. Then one fetch at a time tries it (half open). A failure opens it again for twice as long, up to a bound; a
success closes it. A lookup that was answered proves that the peer answers, never that it serves: only a breaker that
silence has opened is closed by it.
"""

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half_open"
FAILURES = 3  # in a row
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
SLOW_FACTOR = 10.0  # so many times below the rate that it has shown is slow
LEAST_RATE = 64 * 1024.0  # bytes per second; below this a wait until the deadline was for nothing, whatever was shown
JUDGED_SECONDS = 0.2  # a shorter transfer says nothing about a rate
PROBE_SECONDS = 30.0  # a probe that has not reported by then is over
_WEIGHT = 0.25  # of the latest rate in the rate shown


class Breaker:
    """`failures`: in a row. Times in seconds of one clock."""

    def __init__(self) -> None:
        self.failures = 0
        self.opened = 0
        self._open = False
        self._by_silence = False
        self._pause = 0.0
        self._retry_at = 0.0
        self._probe_until: float | None = None
        self._shown = 0.0

    def state(self, now: float) -> str:
        if not self._open:
            return CLOSED
        return HALF_OPEN if now >= self._retry_at else OPEN

    def usable(self, now: float) -> bool:
        """Whether the peer may be asked what it holds."""
        return self.state(now) != OPEN

    def begin(self, now: float) -> bool:
        """Whether a fetch may begin now; while the breaker is half open one at a time may. Its outcome must be
        told by one of the methods below."""
        state = self.state(now)
        if state == HALF_OPEN and (self._probe_until is None or now >= self._probe_until):
            self._probe_until = now + PROBE_SECONDS
            return True
        return state == CLOSED

    # -- outcomes ------------------------------------------------------------------------------------

    def answered(self, now: float) -> None:
        """A question was answered: the peer is not silent."""
        if self._by_silence and self.state(now) != OPEN:
            self._close()

    def silent(self, now: float) -> None:
        """A question was not answered."""
        self._failure(now, by_silence=True)

    def put_off(self) -> None:
        """A fetch was refused as busy, or ended for a reason of our own: neither good nor bad."""
        self._probe_until = None

    def failed(self, now: float) -> None:
        """A fetch broke off, broke the protocol, or brought nothing of what was promised."""
        self._failure(now, by_silence=False)

    def succeeded(self, size: int, seconds: float, now: float) -> None:
        """A fetch brought `size` bytes."""
        if self._crawled(size, seconds):
            self._note_rate(size, seconds)
            self._failure(now, by_silence=False)
            return
        self._note_rate(size, seconds)
        self._close()

    def late(self, size: int, seconds: float, now: float) -> None:
        """A fetch reached its deadline with `size` bytes: too much was asked of a good peer, or it is a slow one."""
        if seconds < JUDGED_SECONDS:
            self.put_off()
        elif size < LEAST_RATE * seconds or self._crawled(size, seconds):
            self._failure(now, by_silence=False, at_once=True)
        else:
            self._note_rate(size, seconds)
            self._close()

    # -- inside --------------------------------------------------------------------------------------

    def _crawled(self, size: int, seconds: float) -> bool:
        return seconds >= JUDGED_SECONDS and size * SLOW_FACTOR < self._shown * seconds

    def _note_rate(self, size: int, seconds: float) -> None:
        """What was slow once counts as well: a link that is slower for good becomes the measure."""
        if seconds >= JUDGED_SECONDS or size >= LEAST_RATE:
            rate = size / max(seconds, 1e-6)
            self._shown = rate if not self._shown else self._shown + _WEIGHT * (rate - self._shown)

    def _failure(self, now: float, *, by_silence: bool, at_once: bool = False) -> None:
        was = self.state(now)
        self._probe_until = None
        self.failures += 1
        if was == OPEN:  # what had begun before
            return
        if was == HALF_OPEN or at_once or self.failures >= FAILURES:
            self._by_silence = by_silence if was == CLOSED else self._by_silence and by_silence
            self._pause = min(2 * self._pause or FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
            self._retry_at = now + self._pause
            self._open = True
            self.opened += 1

    def _close(self) -> None:
        self._open = self._by_silence = False
        self._probe_until = None
        self.failures = 0
        self._pause = 0.0
