"""One purpose's bounds at one end, kept: streams and bytes at a time, and bytes per second. Each one hit is counted.

Limits are given with each call, so that a changed configuration holds from the next one on.
"""

import collections
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvpool_agent.policy.bandwidth import TokenBucket

LOOK_SECONDS = 0.2  # who waits for a rate looks so often whether it is another one now

LEAST_SECONDS = 1e-6  # what is left of a wait after rounding is none


class Gate:
    """So many streams and bytes at a time; those that find none wait in order, so many and so long."""

    def __init__(self, name: str, count: Callable[[str], None]) -> None:
        """Counts `bound_{name}_streams`, `_bytes` and `_queue`."""
        self._name = name
        self._count = count
        self._changed = threading.Condition()
        self._streams = self._bytes = 0
        self._held: collections.Counter[str] = collections.Counter()
        self._waiting: collections.deque[object] = collections.deque()

    @contextmanager
    def entered(
        self, size: int, who: str = "", /, *, streams: int, room: int, queue: int = 0, deadline: float = 0.0
    ) -> Iterator[bool]:
        """Whether there was a place, kept until the context ends, for a stream of `size` bytes, within `streams` and
        `room` bytes. Up to `queue` callers wait for one until the deadline on the monotonic clock. A stream that is
        alone gets in with more bytes than there is room for. who: whose stream it is; the last place of several is for
        one that has none."""

        def full() -> str:
            if self._streams >= streams or (self._held[who] and streams > 1 and self._streams == streams - 1):
                return "streams"
            return "bytes" if self._bytes and self._bytes + size > room else ""

        with self._changed:
            found = not self._waiting and not full()
            if not found:
                self._count(f"bound_{self._name}_{full() or 'streams'}")
                found = self._wait(full, queue, deadline)
            if found:
                self._streams += 1
                self._bytes += size
                if who:
                    self._held[who] += 1
        try:
            yield found
        finally:
            if found:
                with self._changed:
                    self._streams -= 1
                    self._bytes -= size
                    if who:
                        self._held[who] -= 1
                        if not self._held[who]:
                            del self._held[who]
                    self._changed.notify_all()

    def _wait(self, full: Callable[[], str], queue: int, deadline: float) -> bool:
        if len(self._waiting) >= queue:
            if queue:
                self._count(f"bound_{self._name}_queue")
            return False
        ticket = object()
        self._waiting.append(ticket)
        try:
            return self._changed.wait_for(
                lambda: self._waiting[0] is ticket and not full(), max(0.0, deadline - time.monotonic())
            )
        finally:
            self._waiting.remove(ticket)
            self._changed.notify_all()


class Pace:
    """Bytes per second over all streams of a purpose."""

    def __init__(self, name: str, count: Callable[[str], None]) -> None:
        """Counts `bound_{name}_rate`."""
        self._name = name
        self._count = count
        self._lock = threading.Lock()
        self._bucket: TokenBucket | None = None

    def wait(
        self, amount: int, rate: Callable[[], float], block_bytes: int, until: float, *, hopeful: bool = True
    ) -> bool:
        """Waits until these bytes may be moved, at the `rate` bytes per second that holds now (0: no bound). False
        where that is not before `until` on the monotonic clock; then, with `hopeful`, a higher rate was waited for."""
        pause = self._take(amount, rate(), block_bytes)
        if pause:
            self._count(f"bound_{self._name}_rate")
        while pause:
            left = until - time.monotonic()
            if left <= 0 or (pause > left and not hopeful):
                return False
            time.sleep(min(pause, left, LOOK_SECONDS))
            pause = self._take(0, rate(), block_bytes)
        return True

    def owe(self, amount: int, rate: float, block_bytes: int) -> None:
        """Bytes that were moved and not waited for: whoever comes next does."""
        self._take(amount, rate, block_bytes)

    def give_back(self, amount: int, rate: float, block_bytes: int) -> None:
        """Bytes that were waited for and not moved."""
        self._take(-amount, rate, block_bytes)

    def _take(self, amount: int, rate: float, block_bytes: int) -> float:
        """Seconds to wait before the bytes may be moved."""
        if not rate:
            return 0.0
        with self._lock:
            now = time.monotonic()
            if self._bucket is None:
                self._bucket = TokenBucket(rate, block_bytes, now)
            self._bucket.retune(rate, block_bytes)
            pause = self._bucket.take(amount, now)
        return pause if pause > LEAST_SECONDS else 0.0
