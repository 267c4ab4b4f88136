"""Recovery by scan: which extents lie in a folder, told by their headers alone, newest first, within a time.

An extent that is not whole, or not what its header says, is put aside; so are at most a few, the newest. What the time
did not suffice for counts for the quota, serves nobody, and goes first. Where files are sealed, one in clear is
removed: it would lie there for whoever reads the volume. One that no key opens is put aside as well, but as long as a
cache namespace has no key yet it may be that one's, and stays as if there had been no time for it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvpool_agent.store.disk.faults import Damaged, Unopened
from kvpool_agent.store.disk.folder import Folder, Found
from kvpool_agent.store.disk.header import DEFAULT_NAMESPACE, ExtentHeader
from kvpool_agent.store.disk.lanes import Alive, Lanes
from kvpool_agent.store.disk.opened import Opened
from kvpool_agent.store.disk.shelf import Shelves
from kvpool_agent.store.sealing import FileKey

SCAN_SECONDS = 30.0
CALL_SECONDS = 10.0
HEADERS_AT_A_TIME = 32
BAD_KEPT, BAD_PART = 4, 16  # files in quarantine, and one in so many parts of the quota that they may take

Add = Callable[[Found, ExtentHeader | None], None]


@dataclass
class Read:
    """Files of which the header is known, that are nothing whole, that no key opens."""

    headers: list[tuple[Found, ExtentHeader]] = field(default_factory=list)
    damaged: list[Found] = field(default_factory=list)
    unopened: list[Found] = field(default_factory=list)


@dataclass
class Scanned:
    """Blocks found; files that were put aside, that no key opens, of which nothing is known, and of another cache
    namespace. `waiting`: of the unopened, those that a key may open that is still to come."""

    blocks: int = 0
    damaged: int = 0
    unopened: int = 0
    unread: int = 0
    foreign: int = 0
    waiting: int = 0
    quarantined: list[Found] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        return {
            "disk_recovered_blocks": self.blocks,
            "disk_damaged_files": self.damaged,
            "disk_unopened_files": self.unopened,
            "disk_unread_files": self.unread,
            "disk_foreign_files": self.foreign,
        }


def scan(opened: Opened, lanes: Lanes, limit: int, shelves: Shelves, add: Add, seconds: float) -> Scanned:
    """`add` is called for each file that stays, the newest first; without header for one of which its size alone is
    known. Raises DiskError."""
    scanned = Scanned()
    keys, may_come = shelves.keys, shelves.sealed and not shelves.all_have_keys
    until = time.monotonic() + seconds
    extents, bad = opened.patiently(lanes, _files, CALL_SECONDS)
    for start in range(0, len(extents), HEADERS_AT_A_TIME):
        part = extents[start : start + HEADERS_AT_A_TIME]
        if time.monotonic() >= until:
            scanned.unread += len(part)
            for found in part:
                add(found, None)
            continue
        read = opened.patiently(lanes, _headers(part, keys, may_come), CALL_SECONDS)
        scanned.damaged += len(read.damaged)
        scanned.unopened += len(read.unopened)
        bad = [*read.damaged, *([] if may_come else read.unopened), *bad]
        for found in read.unopened if may_come else ():
            scanned.waiting += 1
            add(found, None)
        for found, header in read.headers:
            own = header.seal is not None if shelves.sealed else header.namespace == DEFAULT_NAMESPACE
            scanned.foreign += not own
            scanned.blocks += len(header.entries) if own else 0
            if own or not shelves.sealed:
                add(found, header if own else None)
            else:
                opened.patiently(lanes, removing([found.name]), CALL_SECONDS)
    scanned.quarantined = opened.patiently(lanes, lambda folder, _alive: bounded(folder, bad, limit), CALL_SECONDS)
    for found in scanned.quarantined:
        add(found, None)
    return scanned


def bounded(folder: Folder, bad: Sequence[Found], limit: int) -> list[Found]:
    """Removes what is too much in the quarantine; those that stay, of files from the newest to the oldest."""
    kept: list[Found] = []
    for found in bad:
        if len(kept) < BAD_KEPT and sum(each.size for each in kept) + found.size <= limit // BAD_PART:
            kept.append(found)
        else:
            folder.remove(found.name)
    return kept


def _files(folder: Folder, _alive: Alive) -> tuple[Sequence[Found], Sequence[Found]]:
    folder.remove_unfinished()
    return folder.list()


def removing(names: Sequence[str]) -> Callable[[Folder, Alive], None]:
    """Work that removes these files."""

    def work(folder: Folder, _alive: Alive) -> None:
        for name in names:
            folder.remove(name)

    return work


def _headers(part: Sequence[Found], keys: Sequence[FileKey], may_come: bool) -> Callable[[Folder, Alive], Read]:
    def work(folder: Folder, alive: Alive) -> Read:
        read = Read()
        for found in part:
            if not alive():
                break
            try:
                read.headers.append((found, folder.header(found.name, keys)))
            except Unopened:
                name = found.name if may_come else folder.quarantine(found.name)
                read.unopened.append(Found(name, found.size, found.written))
            except Damaged:
                read.damaged.append(Found(folder.quarantine(found.name), found.size, found.written))
            except FileNotFoundError:
                continue
        return read

    return work
