"""What has failed is left alone for a while, and why is remembered."""

import threading
import time
from collections.abc import Callable

from kvpool_agent.peer.rdma.words import RdmaError

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0


class Pauses:
    """After a failure something is left alone for a while, twice as long each time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, float, RdmaError]] = {}  # until when, for how long, why

    def why(self, name: str) -> RdmaError | None:
        """Why it is left alone now; None where it is not."""
        with self._lock:
            until, _, error = self._known.get(name, (0.0, 0.0, None))
            return error if self._clock() < until else None

    def last(self, name: str) -> RdmaError | None:
        """What went wrong last, until it goes well again."""
        with self._lock:
            return self._known[name][2] if name in self._known else None

    def failed(self, name: str, error: RdmaError) -> None:
        with self._lock:
            before = self._known.get(name, (0.0, 0.0, None))[1]
            pause = min(2 * before or FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
            self._known[name] = self._clock() + pause, pause, error

    def succeeded(self, name: str) -> None:
        with self._lock:
            self._known.pop(name, None)

    def forget(self, name: str) -> None:
        """Whoever it was is there no more."""
        self.succeeded(name)

    def failures(self) -> list[tuple[str, RdmaError]]:
        """What went wrong last with each that has not gone well since."""
        with self._lock:
            return [(name, error) for name, (_, _, error) in sorted(self._known.items())]
