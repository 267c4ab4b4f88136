"""What can be wrong with a disk, in the words that status, counters and docs/operations.md share.

An error number says what the kernel knows; a disk that does not answer says nothing, which is a fault of its own.
"""

import errno

FULL, READ_ONLY, NOT_WRITABLE = "disk_full", "disk_read_only", "disk_not_writable"
VANISHED, IN_USE, SLOW = "disk_vanished", "disk_in_use", "disk_slow"
CORRUPT, IO_ERROR = "disk_corrupt", "disk_io_error"

_WORDS = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EROFS: READ_ONLY,
    errno.EACCES: NOT_WRITABLE,
    errno.EPERM: NOT_WRITABLE,
    errno.ENOENT: VANISHED,
    errno.ENOTDIR: VANISHED,
    errno.ENODEV: VANISHED,
    errno.ENXIO: VANISHED,
    errno.ESTALE: VANISHED,
    errno.ENOTCONN: VANISHED,
}


class DiskError(Exception):
    """The disk can't be used as it is; `word` names why."""

    def __init__(self, word: str, detail: str, number: int = 0) -> None:
        super().__init__(f"{word}: {detail}")
        self.word, self.number = word, number


class Damaged(Exception):  # noqa: N818 - of one file, not of the disk
    """A file is not what an extent is, or holds other bytes than were written."""


class Unopened(Damaged):
    """A sealed file that none of the keys opens: of a key that was taken back, of another pool or cache namespace, or
    changed."""


def of(error: OSError) -> DiskError:
    """The named fault behind an error of the operating system."""
    number = error.errno or 0
    return DiskError(_WORDS.get(number, IO_ERROR), error.strerror or str(error), number)
