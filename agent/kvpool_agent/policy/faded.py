"""A sum in which what was added long ago weighs little: half as much after each half-life."""

HALF_SECONDS = 600.0


class Faded:
    """Times in seconds of one clock."""

    def __init__(self, half_seconds: float = HALF_SECONDS) -> None:
        self._half_seconds = half_seconds
        self._value, self._at = 0.0, 0.0

    def add(self, value: float, now: float) -> None:
        self._value = self.at(now) + value
        self._at = now

    def at(self, now: float) -> float:
        return self._value * float(0.5 ** (max(0.0, now - self._at) / self._half_seconds))
