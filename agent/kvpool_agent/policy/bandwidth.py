"""A bound on bytes per second: a token bucket that starts empty, so that no interval from its start exceeds it."""


class TokenBucket:
    """rate: bytes per second. Times in seconds of one clock. The bucket holds at most a tenth of a second's bytes,
    or one block if that is more."""

    def __init__(self, rate: float, block_bytes: int, now: float) -> None:
        self._rate = rate
        self._capacity = max(rate / 10, float(block_bytes))
        self._tokens = 0.0
        self._at = now

    def retune(self, rate: float, block_bytes: int) -> None:
        """Another rate from now on; what is owed stays owed."""
        self._rate = rate
        self._capacity = max(rate / 10, float(block_bytes))

    def take(self, amount: int, now: float) -> float:
        """Takes `amount` bytes; returns the seconds to wait before they may be asked for. Amounts over the capacity
        run the bucket into debt, which later takers wait for."""
        self._tokens = min(self._capacity, self._tokens + (now - self._at) * self._rate)
        self._at = now
        self._tokens -= amount
        return max(0.0, -self._tokens / self._rate)
