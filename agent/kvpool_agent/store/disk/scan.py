"""Recovery by scan: which extents lie in a folder, told by their headers alone, newest first, within a time.

An extent that is not whole, or not what its header says, is put aside; so are at most a few, the newest. What the time
did not suffice for counts for the quota, serves nobody, and goes first.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvpool_agent.store.disk.faults import Damaged
from kvpool_agent.store.disk.folder import Folder, Found
from kvpool_agent.store.disk.header import DEFAULT_NAMESPACE, ExtentHeader
from kvpool_agent.store.disk.lanes import Alive, Lanes
from kvpool_agent.store.disk.opened import Opened

SCAN_SECONDS = 30.0
CALL_SECONDS = 10.0
HEADERS_AT_A_TIME = 32
BAD_KEPT, BAD_PART = 4, 16  # files in quarantine, and one in so many parts of the quota that they may take

Read = list[tuple[Found, ExtentHeader | None]]


@dataclass
class Scanned:
    """Blocks found; files that were put aside, of which nothing is known, and of another cache namespace."""

    blocks: int = 0
    damaged: int = 0
    unread: int = 0
    foreign: int = 0
    quarantined: list[Found] = field(default_factory=list)


def scan(
    opened: Opened, lanes: Lanes, limit: int, add: Callable[[Found, ExtentHeader | None], None], seconds: float
) -> Scanned:
    """`add` is called for each file that stays, the newest first; without header for one of which its size alone is
    known. Raises DiskError."""
    scanned = Scanned()
    until = time.monotonic() + seconds
    extents, bad = opened.patiently(lanes, _files, CALL_SECONDS)
    for start in range(0, len(extents), HEADERS_AT_A_TIME):
        part = extents[start : start + HEADERS_AT_A_TIME]
        if time.monotonic() >= until:
            scanned.unread += len(part)
            for found in part:
                add(found, None)
            continue
        read, damaged = opened.patiently(lanes, _headers(part), CALL_SECONDS)
        scanned.damaged += len(damaged)
        bad = [*damaged, *bad]
        for found, header in read:
            own = header is not None and header.namespace == DEFAULT_NAMESPACE
            scanned.foreign += not own
            scanned.blocks += len(header.entries) if header is not None and own else 0
            add(found, header if own else None)
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


def _headers(part: Sequence[Found]) -> Callable[[Folder, Alive], tuple[Read, list[Found]]]:
    def work(folder: Folder, alive: Alive) -> tuple[Read, list[Found]]:
        read: Read = []
        damaged = []
        for found in part:
            if not alive():
                break
            try:
                read.append((found, folder.header(found.name)))
            except Damaged:
                damaged.append(Found(folder.quarantine(found.name), found.size, found.written))
            except FileNotFoundError:
                continue
        return read, damaged

    return work
