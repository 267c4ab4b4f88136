"""Threads for disk I/O alone, so that nobody else ever waits in the kernel for a disk.

A call that has not come back when its time is over is left behind: its thread may sit where no signal reaches it, and
goes on by itself when the disk answers. There are so many threads and no more: when all of them sit there, the next
caller is told at once or at its deadline, and nothing is started.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as NotYet
from typing import TypeVar

from kvpool_agent.store.threads import Threads

LEAST_SECONDS, LEAST_RATE = 2.0, 16 << 20

T = TypeVar("T")
Alive = Callable[[], bool]


class NoThread(Exception):  # noqa: N818 - an outcome
    """All threads were busy until the deadline, or none could be started; the work was not begun."""


class LeftBehind(Exception):  # noqa: N818
    """The work was begun and has not ended in time; it ends by itself."""


def patience(size: int) -> float:
    """Seconds within which a call on so many bytes has come back; a disk that takes longer is a slow one."""
    return LEAST_SECONDS + size / LEAST_RATE


class Lanes:
    """Any thread may call."""

    def __init__(self, name: str, threads: int) -> None:
        self._threads = Threads(f"kvpool-disk-{name}", threads)
        self._free = threading.Semaphore(threads)
        self._lock = threading.Lock()
        self._stuck = 0

    @property
    def stuck(self) -> int:
        """Threads that were left behind and have not come back."""
        return self._stuck

    def call(self, work: Callable[[Alive], T], until: float, late: Callable[[T], object] = lambda _: None) -> T:
        """Runs the work on a thread of these and waits for its end until a time on the monotonic clock. The work gets
        a function that says whether somebody still waits; what it returns after that goes to `late`. Raises NoThread
        and LeftBehind, and what the work raises."""
        if not self._free.acquire(timeout=max(0.0, until - time.monotonic())):
            raise NoThread
        left = threading.Event()

        def run() -> T:
            was_left = False
            try:
                result = work(lambda: not left.is_set())
            finally:
                with self._lock:
                    was_left = left.is_set()
                    left.set()  # too late to be left behind
                    self._stuck -= was_left
                self._free.release()
            if was_left:
                late(result)
            return result

        future = self._threads.begin(run)
        if future is None:
            self._free.release()
            raise NoThread
        try:
            return future.result(max(0.0, until - time.monotonic()))
        except NotYet:
            with self._lock:
                ended = left.is_set()
                left.set()
                self._stuck += not ended
            if ended:
                return future.result()
            raise LeftBehind from None
