"""Every engine job ends exactly once: one lock, open → closed.

The engine dies when a job is reported twice, or is still open after a drain. Deadline, completion, loss of the
session and drain compete here for the one change. A load writes rows of the engine's host pool, so it may not be
closed while a copy into its rows runs: then it is told to stop, and the copying thread closes it after the block.
A store only lets the agent read rows, and may be closed at any time; what the agent copied later is never committed.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Result:
    """The one report of a job. `done`: keys that were copied and are valid; `success`: all of them."""

    job: int
    success: bool
    is_load: bool
    done: tuple[bytes, ...]


@dataclass
class _Job:
    keys: frozenset[bytes]
    is_load: bool
    deadline: float
    done: list[bytes] = field(default_factory=list)
    copying: bool = False
    stop: bool = False


class Ledger:
    """Open jobs and the results that were not yet taken. Times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: dict[int, _Job] = {}
        self._results: list[Result] = []
        self._load_rows = 0

    def open(self, job: int, keys: Iterable[bytes], *, is_load: bool, deadline: float) -> None:
        with self._changed:
            self._open[job] = _Job(frozenset(keys), is_load, deadline)
            if is_load:
                self._load_rows += len(self._open[job].keys)

    @property
    def load_rows(self) -> int:
        """Rows of the host pool that open loads hold."""
        return self._load_rows

    def begin_copy(self, job: int, now: float) -> bool:
        """Whether a copy into one of the job's rows may start now; `end_copy` must follow when it may."""
        with self._changed:
            entry = self._open.get(job)
            if entry is None:
                return False
            if entry.stop or now >= entry.deadline:
                self._close(job, entry)
                return False
            entry.copying = True
            return True

    def end_copy(self, job: int, key: bytes, *, valid: bool) -> None:
        """Ends what `begin_copy` began. `valid`: the lease held all the time, so the row holds the block."""
        with self._changed:
            entry = self._open[job]
            entry.copying = False
            if valid:
                entry.done.append(key)
            if entry.stop:
                self._close(job, entry)
            self._changed.notify_all()

    def close(self, job: int, *, success: bool) -> bool:
        """Closes a job whose work has ended; False when something else closed it before.

        A store is given its success; a load's success is what its copies were.
        """
        with self._changed:
            entry = self._open.get(job)
            if entry is None:
                return False
            if success and not entry.is_load:
                entry.done = list(entry.keys)
            self._close(job, entry)
            return True

    def expire(self, now: float) -> int:
        """Closes the jobs whose deadline has passed; returns how many stores were among them."""
        with self._changed:
            late = [job for job, entry in self._open.items() if now >= entry.deadline]
            return self._end(late)

    def fail_all(self) -> int:
        """Ends all open jobs, with what they have; returns how many stores were among them."""
        with self._changed:
            return self._end(list(self._open))

    def drain(self) -> None:
        """`fail_all`, and waits for the copies that run now. None is open afterwards."""
        with self._changed:
            self._end(list(self._open))
            self._changed.wait_for(lambda: not self._open)

    def take(self) -> list[Result]:
        """The results since the last call."""
        with self._changed:
            results, self._results = self._results, []
            return results

    @property
    def pending(self) -> bool:
        """Whether a job is open or a result waits to be taken."""
        return bool(self._open or self._results)

    def _end(self, jobs: list[int]) -> int:
        stores = 0
        for job in jobs:
            entry = self._open[job]
            stores += not entry.is_load
            if entry.copying:
                entry.stop = True
            else:
                self._close(job, entry)
        return stores

    def _close(self, job: int, entry: _Job) -> None:
        del self._open[job]
        if entry.is_load:
            self._load_rows -= len(entry.keys)
        success = len(entry.done) == len(entry.keys)
        self._results.append(Result(job, success, entry.is_load, tuple(entry.done)))
        self._changed.notify_all()
