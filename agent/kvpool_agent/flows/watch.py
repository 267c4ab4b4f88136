"""A thread that looks at the slab of now, every so often: what failed once is tried again at the next look."""

import abc
import logging
import threading

from kvpool_agent.store.slab import Slab, Slabs

log = logging.getLogger("kvpool.watch")


class SlabWatch(abc.ABC):
    """`start` once; `close` lets a look that runs come to its end. `every`: whether all slabs are looked at, or the
    default cache namespace's alone."""

    every = False

    def __init__(self, slabs: Slabs, name: str, seconds: float) -> None:
        """name: the thread's, after `kvpool-`. seconds: from the end of one look to the next."""
        self._slabs = slabs
        self._seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kvpool-{name}", daemon=True)

    @abc.abstractmethod
    def look(self, slab: Slab) -> None:
        """Called while there is a slab."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            try:
                for slab in self._slabs.all if self.every else self._slabs.all[:1]:
                    self.look(slab)
            except Exception:
                log.exception("%s: a look failed", self._thread.name)
