"""Calls on the external store, on threads that do nothing else: who asks waits until its own deadline and no longer.

What is not there by then is left behind and ends by itself. There are so many threads, and so many calls that may wait
for one, and no more: beyond that the answer is `store_busy` at once.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import TypeVar

from kvpool_agent.store.external.objects import BUSY, SLOW, StoreError

WAITING = 8  # calls for each thread

T = TypeVar("T")


class Calls:
    """Any thread may call."""

    def __init__(self, name: str, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, f"kvpool-store-{name}")
        self._places = threading.Semaphore(threads * WAITING)

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Raises StoreError where too many wait already."""
        if not self._places.acquire(blocking=False):
            raise StoreError(BUSY, "too many calls are open")
        future = self._pool.submit(work)
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
