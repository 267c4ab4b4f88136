"""A folder that is in use: it is closed when it was given up and the last call on it has come back, never under one.

A descriptor that is closed while a thread sits in a call on it may be another file's by the time the call goes on.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from kvpool_agent.store.disk.faults import SLOW, DiskError, of
from kvpool_agent.store.disk.folder import Folder
from kvpool_agent.store.disk.lanes import Alive, Lanes, LeftBehind, NoThread

T = TypeVar("T")


class Opened:
    """Any thread may call."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._calls = 0
        self._given_up = False
        self._slow_at: dict[object, float] = {}  # of calls that are under way

    @property
    def in_use(self) -> bool:
        """Whether a call on it has not come back."""
        return self._calls > 0

    def call(self, lanes: Lanes, work: Callable[[Folder, Alive], T], until: float, patience: float = math.inf) -> T:
        """As Lanes.call; NoThread, too, where the folder was given up. Raises DiskError in place of OSError. patience:
        seconds after which the disk is a slow one, whether somebody still waits for the call or not."""
        with self._lock:
            if self._given_up:
                raise NoThread
            self._calls += 1

        def run(alive: Alive) -> T:
            this = object()
            self._slow_at[this] = time.monotonic() + patience
            try:
                return work(self._folder, alive)
            finally:
                del self._slow_at[this]
                self._leave()

        try:
            return lanes.call(run, until)
        except NoThread:
            self._leave()
            raise
        except OSError as error:
            raise of(error) from None

    def patiently(self, lanes: Lanes, work: Callable[[Folder, Alive], T], seconds: float) -> T:
        """A call whose end nobody else waits for: a disk that takes longer is a slow one, and so is one on which
        another call has lasted longer than it may."""
        if any(time.monotonic() >= at for at in list(self._slow_at.values())):
            raise DiskError(SLOW, "a call that nobody waits for any more has not come back")
        try:
            return self.call(lanes, work, time.monotonic() + seconds)
        except (NoThread, LeftBehind):
            raise DiskError(SLOW, f"a call has not come back within {seconds:.1f} s") from None

    def give_up(self) -> None:
        """No new call from now on."""
        with self._lock:
            close = not self._given_up and not self._calls
            self._given_up = True
        if close:
            self._folder.close()

    def _leave(self) -> None:
        with self._lock:
            self._calls -= 1
            close = self._given_up and not self._calls
        if close:
            self._folder.close()
