"""The arena's memory: an anonymous shared file that the supervisor holds, so it outlives a worker.

One file of the configured size, for the whole life of the container: a new worker takes the same bytes again, so
the limit holds across a restart. Pages count only once they are touched.
"""

import contextlib
import fcntl
import logging
import mmap
import os
from dataclasses import dataclass

from kvpool_agent.store import huge
from kvpool_client.memory import address_of, reopen_read_only

log = logging.getLogger("kvpool.arena")


@dataclass(frozen=True)
class Part:
    """Neighbouring bytes of the arena's memory."""

    view: memoryview
    address: int


class ArenaMemory:
    """`size` writable bytes; `view` for sockets, `address` for copies, `descriptor` for processes of this agent's."""

    def __init__(self, descriptor: int, size: int, *, huge_pages: bool = False) -> None:
        """A file that has a size keeps it, whatever the configuration says now: an engine may have it mapped, and
        the container's limit was chosen for it. huge_pages: whether the kernel is asked for such."""
        size -= size % mmap.PAGESIZE
        chosen = os.fstat(descriptor).st_size
        if not chosen:
            os.ftruncate(descriptor, size)
            with contextlib.suppress(OSError):  # a file that was not made for it
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        elif chosen != size:
            log.warning("the arena keeps its %d bytes; another size holds for new pods", chosen)
            size = chosen
        self._map = mmap.mmap(descriptor, size)
        self.descriptor = descriptor
        self.size = size
        self.view = memoryview(self._map)
        self.address = address_of(self.view)
        self.huge_pages = huge_pages
        if huge_pages:
            huge.advise(self._map)

    def part(self, offset: int, size: int) -> Part:
        return Part(self.view[offset : offset + size], self.address + offset)

    def reader(self) -> int:
        """A new read-only descriptor, for the engine."""
        return reopen_read_only(self.descriptor)

    @classmethod
    def anonymous(cls, size: int, *, huge_pages: bool = False) -> "ArenaMemory":
        """Memory of this process alone, where no supervisor has made one."""
        descriptor = os.memfd_create("kvpool-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        return cls(descriptor, size, huge_pages=huge_pages)
