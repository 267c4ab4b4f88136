"""A witness that asks /readyz all the time while a test does something to the replica."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from replica import Replica

PAUSE_SECONDS = 0.005


@contextmanager
def watching(replica: Replica) -> Iterator[list[bool]]:
    """Every answer of /readyz while the context is open, False also for none."""
    answers: list[bool] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            try:
                answers.append(replica.probe("readyz"))
            except OSError:
                answers.append(False)
            ended.wait(PAUSE_SECONDS)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield answers
    finally:
        ended.set()
        thread.join()
