"""Calls on the external store, on threads that do nothing else: who asks waits until its own deadline and no longer.

What is not there by then is left behind and ends by itself. There are so many threads, and so many calls that may wait
for one, and no more: beyond that the answer is `store_busy` at once.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import TypeVar

from kvpool_agent.store.external.objects import BUSY, SLOW, StoreError
from kvpool_agent.store.threads import Threads

WAITING = 8  # calls for each thread

T = TypeVar("T")


class Calls:
    """Any thread may call."""

    def __init__(self, name: str, threads: int) -> None:
        self._threads = Threads(f"kvpool-store-{name}", threads)
        self._places = threading.Semaphore(threads * WAITING)

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Raises StoreError where too many wait already, or no thread can be started."""
        if not self._places.acquire(blocking=False):
            raise StoreError(BUSY, "too many calls are open")
        future = self._threads.begin(work)
        if future is None:
            self._places.release()
            raise StoreError(BUSY, "no thread can be started")
        future.add_done_callback(lambda _: self._places.release())
        return future

    @staticmethod
    def wait(future: Future[T], until: float) -> T:
        """What it returned. until: on the monotonic clock. Raises StoreError, also where it has not ended by then."""
        try:
            return future.result(max(0.0, until - time.monotonic()))
        except NotYet:
            if future.done():
                return future.result()
            future.cancel()
            raise StoreError(SLOW, "no answer in time") from None
