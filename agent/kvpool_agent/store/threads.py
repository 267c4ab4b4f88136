"""A bounded number of threads, each started when there is work that none of the others is free for.

Unlike the standard library's pool it keeps nothing of work for which the system starts no thread: that is told, and the
work is never begun. A thread that has had nothing to do for a while ends.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

IDLE_SECONDS = 10.0

T = TypeVar("T")


class Threads:
    """Any thread may call."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._free = 0  # threads without work, less the work that waits for one

    def begin(self, work: Callable[[], T]) -> Future[T] | None:
        """What will have its outcome. Where all threads are busy it waits for one; where another one may be started
        and the system starts none, None."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
                future.set_exception(error)

        with self._lock:
            if self._free <= 0 and self._started < self._count:
                try:
                    threading.Thread(target=self._work, name=self._name, daemon=True).start()
                except RuntimeError:
                    return None
                self._started += 1
                self._free += 1
            self._free -= 1
        self._queue.put(run)
        return future

    def _work(self) -> None:
        while True:
            try:
                self._queue.get(timeout=IDLE_SECONDS)()
            except queue.Empty:
                with self._lock:
                    if self._free > 0:  # else there is work on its way
                        self._free -= 1
                        self._started -= 1
                        return
            else:
                with self._lock:
                    self._free += 1
