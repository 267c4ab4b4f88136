"""Bytes between views and a file, all of them, and out of the page cache again where they had to go through it."""

import mmap
import os
from collections.abc import Callable, Sequence

from kvpool_agent.store.disk.faults import Damaged

SYNC_BYTES = 8 << 20
MAX_VIEWS = 512  # of one call


def pages(size: int) -> memoryview:
    """A buffer that lies on whole pages, as direct I/O wants it. It goes with its last user: an error that is on its
    way holds views of it, and to close it under them is another error."""
    return memoryview(mmap.mmap(-1, size))


class Writing:
    """A file that is written from its beginning to its end."""

    def __init__(self, descriptor: int, *, bypasses: bool) -> None:
        """bypasses: whether its bytes go past the page cache; else they leave it every few megabytes."""
        self._descriptor, self._bypasses = descriptor, bypasses
        self._at = self._synced = 0

    def put(self, views: Sequence[memoryview]) -> None:
        """The next bytes: when it returns they may change. At most MAX_VIEWS views."""
        _all(os.pwritev, self._descriptor, views, self._at)
        self._at += sum(len(view) for view in views)
        if not self._bypasses and self._at - self._synced >= SYNC_BYTES:
            os.fdatasync(self._descriptor)
            os.posix_fadvise(self._descriptor, 0, self._at, os.POSIX_FADV_DONTNEED)
            self._synced = self._at

    def put_all(self, pieces: Sequence[memoryview]) -> None:
        """Many of them."""
        batch: list[memoryview] = []
        size = 0
        for piece in pieces:
            batch.append(piece)
            size += len(piece)
            if size >= SYNC_BYTES or len(batch) >= MAX_VIEWS:
                self.put(batch)
                batch, size = [], 0
        if batch:
            self.put(batch)


def read(descriptor: int, views: Sequence[memoryview], offset: int) -> None:
    """Fills the views, at most MAX_VIEWS. Raises Damaged where the file ends before that."""
    _all(os.preadv, descriptor, views, offset)


def _all(
    move: Callable[[int, Sequence[memoryview], int], int], descriptor: int, views: Sequence[memoryview], offset: int
) -> None:
    """However few bytes the kernel takes at a time."""
    left = list(views)
    while left:
        moved = move(descriptor, left, offset)
        if not moved:
            raise Damaged("it ends before its blocks do")
        offset += moved
        while left and moved >= len(left[0]):
            moved -= len(left.pop(0))
        if left and moved:
            left[0] = left[0][moved:]
