"""The folder of the disk tier: every system call on it, and the order of writes that no loss of power breaks.

A file is written under a temporary name, synced, renamed, and the folder synced: under its final name it is whole. Its
name is random and says nothing. Only this folder, below the one that was named, is ever touched, and only files named
as here are opened, never followed as links, never waited for as pipes. Where the volume takes it, reads and writes go
past the page cache; elsewhere what was written is synced and dropped from it every few megabytes, so the cache never
counts much of it against the container's memory.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvpool_agent.store.disk import header as codec
from kvpool_agent.store.disk import moves, sealed
from kvpool_agent.store.disk.faults import IN_USE, Damaged, DiskError
from kvpool_agent.store.disk.header import ExtentHeader
from kvpool_agent.store.sealing import FileKey, Seal

FOLDER = "kvpool-extents"
LOCK = "lock"
TEMPORARY, BAD = "tmp-", "bad-"
_NAME = re.compile(r"[0-9a-f]{32}")
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True)
class Found:
    """A file in the folder: its name, bytes, when it was written (ns)."""

    name: str
    size: int
    written: int


class Folder:
    """Opened, locked, ours alone. Every call may block for as long as the disk pleases. Raises OSError."""

    def __init__(self, path: str) -> None:
        """Raises DiskError where another process holds the folder."""
        self._path = Path(path) / FOLDER
        self._path.mkdir(0o700, exist_ok=True)
        self._fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
        self._lock = -1
        self.direct = True  # until the volume refuses it
        try:
            self._lock = os.open(LOCK, os.O_RDONLY | os.O_CREAT | _OPEN | os.O_NONBLOCK, 0o600, dir_fd=self._fd)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise DiskError(IN_USE, f"another process has locked {path}") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the use of the folder, and the lock. Nobody may be in a call."""
        for descriptor in (self._lock, self._fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self._fd = -1

    def check(self) -> None:
        """Raises OSError where the path leads elsewhere by now, or nothing can be written."""
        if not os.path.samestat(self._path.lstat(), os.fstat(self._fd)):
            raise OSError(errno.ENOENT, "another folder is there now")
        if os.fstatvfs(self._fd).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    @property
    def volume_bytes(self) -> int:
        volume = os.fstatvfs(self._fd)
        return volume.f_blocks * volume.f_frsize

    def remove_unfinished(self) -> None:
        """Removes temporary files: nobody may be writing one."""
        with os.scandir(self._fd) as entries:
            for entry in entries:
                if entry.name.startswith(TEMPORARY):
                    self.remove(entry.name)

    def quarantined(self) -> Sequence[Found]:
        """Files in quarantine, newest first."""
        return self._found(lambda name: name.startswith(BAD))

    def list(self) -> tuple[Sequence[Found], Sequence[Found]]:
        """Extents, newest first, and files in quarantine, newest first."""
        return self._found(lambda name: _NAME.fullmatch(name) is not None), self.quarantined()

    def header(self, name: str, keys: Sequence[FileKey] = ()) -> ExtentHeader:
        """What the file says it holds; of a sealed one what one of the keys opens. Raises Damaged where it is no whole
        extent of this version, Unopened among them."""
        descriptor = self._open(name, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead into blocks
            start = os.pread(descriptor, codec.PAGE, 0)
            length = codec.length_of(start) or sealed.length_of(start)
            data = start + os.pread(descriptor, length - len(start), len(start)) if length else b""
            found = sealed.decode(data, keys) if sealed.is_sealed(start) else codec.decode(data)
            if found is None:
                raise Damaged("its header does not check, or is another version's")
            if os.fstat(descriptor).st_size != found.file_bytes:
                raise Damaged("it is shorter or longer than its header says")
            return found
        finally:
            os.close(descriptor)

    def write(
        self,
        header: ExtentHeader,
        blocks: Sequence[memoryview],
        still_right: Callable[[], bool],
        key: FileKey | None = None,
    ) -> tuple[str, ExtentHeader] | None:
        """Writes an extent, sealed under the key if there is one, and returns its name and what it holds; None, and no
        file is left, where `still_right` says, when all bytes are on the disk, that they may not be those that were
        meant. Raises OSError, and no file is left either."""
        name = secrets.token_hex(16)
        temporary = TEMPORARY + name
        try:
            seal = self._fill(temporary, header, blocks, key)
            if not still_right():
                self.remove(temporary)
                return None
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            os.fsync(self._fd)
        except BaseException:
            for left in (temporary, name):
                with contextlib.suppress(OSError):
                    self.remove(left)
            raise
        return name, replace(header, seal=seal)

    def read(self, name: str, header: ExtentHeader, places: Iterable[tuple[int, memoryview]]) -> None:
        """Fills each view with the block at its position. Raises Damaged where the file has no such bytes."""
        places = list(places)

        def move(descriptor: int, bypasses: bool) -> None:
            if header.seal is not None:
                sealed.read(descriptor, header, places)
            else:
                for offset, views in _runs(header, places):
                    moves.read(descriptor, views, offset)
            if not bypasses:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

        self._either_way(name, os.O_RDONLY, header.seal is not None or header.block_bytes % codec.PAGE == 0, move)

    def remove(self, name: str) -> None:
        """One that is not there harms nothing."""
        with contextlib.suppress(FileNotFoundError):
            try:
                os.unlink(name, dir_fd=self._fd)
            except IsADirectoryError:
                os.rename(name, f"dir-{secrets.token_hex(16)}", src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def quarantine(self, name: str) -> str:
        """Puts a file aside, whatever it is; its new name."""
        with contextlib.suppress(FileNotFoundError):
            os.rename(name, BAD + name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        return BAD + name

    # -- inside --------------------------------------------------------------------------------------

    def _found(self, wanted: Callable[[str], bool]) -> Sequence[Found]:
        found = []
        with os.scandir(self._fd) as entries:
            for entry in entries:
                if wanted(entry.name):
                    status = entry.stat(follow_symlinks=False)
                    found.append(Found(entry.name, status.st_size, status.st_mtime_ns))
        return sorted(found, key=lambda each: -each.written)

    def _fill(self, name: str, header: ExtentHeader, blocks: Sequence[memoryview], key: FileKey | None) -> Seal | None:
        seal: Seal | None = None

        def move(descriptor: int, bypasses: bool) -> None:
            nonlocal seal
            if key is not None:
                seal = sealed.write(descriptor, header, key, blocks, bypasses=bypasses)
            else:
                _write(descriptor, header, blocks, bypasses=bypasses)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

        pages = key is not None or header.block_bytes % codec.PAGE == 0
        self._either_way(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, pages, move)
        return seal

    def _either_way(self, name: str, flags: int, pages: bool, move: Callable[[int, bool], None]) -> None:
        """Opens the file and moves its bytes past the page cache, or through it where the volume refuses that. pages:
        whether they are moved in whole pages, which alone can. move: called with the descriptor and whether it goes
        past."""
        while True:
            bypasses = self.direct and pages
            try:
                descriptor = self._open(name, flags | (os.O_DIRECT if bypasses else 0))
                try:
                    move(descriptor, bypasses)
                finally:
                    os.close(descriptor)
            except OSError as error:
                if error.errno != errno.EINVAL or not bypasses:
                    raise
                self.direct = False
            else:
                return

    def _open(self, name: str, flags: int) -> int:
        try:
            descriptor = os.open(name, flags | _OPEN | os.O_NONBLOCK, 0o600, dir_fd=self._fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise Damaged("it is no regular file") from None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Damaged("it is no regular file")
        return descriptor


def _runs(header: ExtentHeader, places: Iterable[tuple[int, memoryview]]) -> Iterable[tuple[int, list[memoryview]]]:
    """(offset, views) of each read: neighbours in the file are one, where nothing lies between them."""
    gapless = header.block_bytes % codec.PAGE == 0
    start, views = -2, list[memoryview]()
    for position, view in places:
        if views and gapless and position == start + len(views) and len(views) < moves.MAX_VIEWS:
            views.append(view)
            continue
        if views:
            yield header.offset(start), views
        start, views = position, [view]
    if views:
        yield header.offset(start), views


def _write(descriptor: int, header: ExtentHeader, blocks: Sequence[memoryview], *, bypasses: bool) -> None:
    encoded = codec.encode(header)
    gap = memoryview(bytes(header.stride - header.block_bytes))
    start = moves.pages(len(encoded))
    start[:] = encoded
    pieces = [start, *(piece for block in blocks for piece in (block, gap) if len(piece))]
    moves.Writing(descriptor, bypasses=bypasses).put_all(pieces)
