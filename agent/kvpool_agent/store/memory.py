"""The arena's memory: an anonymous shared file that the supervisor holds, so it outlives a worker.

One file of the configured size, for the whole life of the container: a new worker takes the same bytes again, so
the limit holds across a restart. Pages count only once they are touched.
"""

import mmap
import os

from kvpool_client.memory import address_of, reopen_read_only


class ArenaMemory:
    """`size` writable bytes; `view` for sockets, `address` for copies."""

    def __init__(self, descriptor: int, size: int) -> None:
        size -= size % mmap.PAGESIZE
        os.ftruncate(descriptor, size)
        self._map = mmap.mmap(descriptor, size)
        self._descriptor = descriptor
        self.size = size
        self.view = memoryview(self._map)
        self.address = address_of(self.view)

    def reader(self) -> int:
        """A new read-only descriptor, for the engine."""
        return reopen_read_only(self._descriptor)

    @classmethod
    def anonymous(cls, size: int) -> "ArenaMemory":
        """Memory of this process alone, where no supervisor has made one."""
        return cls(os.memfd_create("kvpool-arena", os.MFD_CLOEXEC), size)
