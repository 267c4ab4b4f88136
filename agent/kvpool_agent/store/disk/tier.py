"""The disk tier: what it holds, what it is asked to keep, and how it is; all I/O on threads of its own.

Blocks are written ahead: when a second request has contained them, while they still lie in the arena. So an eviction
waits for nothing, and what is lost with the container's memory is on the disk already. Whatever goes wrong with the
disk ends in the same state, no tier and a named reason; after a pause, each time a longer one, the folder is opened and
scanned anew. A folder on which a call still hangs is not opened again: so no more threads hang than there are.
"""

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Callable, Sequence

from kvpool_agent.account import Account
from kvpool_agent.keyring import Keyring
from kvpool_agent.store.arena import Held
from kvpool_agent.store.disk import scan as scanning
from kvpool_agent.store.disk.faults import CORRUPT, FULL, SLOW, Damaged, DiskError, of
from kvpool_agent.store.disk.folder import Folder, Found
from kvpool_agent.store.disk.header import MAX_BLOCKS, ExtentHeader
from kvpool_agent.store.disk.index import Place, Read
from kvpool_agent.store.disk.lanes import Alive, Lanes, LeftBehind, NoThread, patience
from kvpool_agent.store.disk.opened import Opened
from kvpool_agent.store.disk.shelf import Shelf, Shelves, header_of
from kvpool_agent.store.heads import Heads
from kvpool_agent.store.intact import intact
from kvpool_agent.store.slab import Slab
from kvpool_contract import status as contract
from kvpool_contract.config import Disk

log = logging.getLogger("kvpool.disk")

READ_THREADS, WRITE_THREADS = 4, 2
VOLUME_PERCENT = 90
EXTENT_BYTES = 32 << 20  # of one file at most, or one block
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
FULL_SECONDS = 60.0  # until a volume that was full is tried to its quota again
CHECK_SECONDS = 5.0
LOOK_SECONDS = 0.5
DAMAGED_IN_A_ROW = 8
NONE, OPENING, READY, DEGRADED = "none", "opening", "ready", "degraded"


class DiskTier:
    """`start` once; any thread may call the rest."""

    def __init__(
        self, config: Disk, account: Account, slabs: Callable[[], Sequence[Slab]], keyring: Keyring | None = None
    ) -> None:
        """Without a path there is no tier. slabs: those of now, the default one first. keyring: where its cache
        namespaces have keys, files are sealed."""
        self._path, self._size, self._account, self._slabs = config.path, config.bytes, account, slabs
        self.paused = False
        self._reads, self._writes = Lanes("read", READ_THREADS), Lanes("write", WRITE_THREADS)
        self._changed = threading.Condition()
        self._opened: Opened | None = None
        self._last: Opened | None = None  # that was given up
        self.heads = Heads()
        self._shelves = Shelves(keyring or Keyring(), self.heads)
        self._waiting = 0  # files that a key may open which is still to come
        self._bad: list[Found] = []
        self._state, self._reason = OPENING if config.path else NONE, ""
        self._limit, self._full_until = 0, 0.0
        self._pause, self._retry_at, self._check_at = FIRST_PAUSE_SECONDS, 0.0, 0.0
        self._damaged_in_a_row = 0
        self._closing = self.ended = False

    def start(self) -> None:
        if self._path:
            threading.Thread(target=self._run, name="kvpool-disk", daemon=True).start()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def status(self) -> contract.Disk:
        with self._changed:
            reason = self._reason or (FULL if self._full_until else "")
            has = self._shelves
            return contract.Disk(self._state, reason, self._limit, has.used, has.blocks, has.files, has.sealed)

    @property
    def looking(self) -> bool:
        """Whether it is not known yet what lies here."""
        return self._state == OPENING or (self._state == DEGRADED and self._opened is not None)

    # -- what it is asked to keep --------------------------------------------------------------------

    def used(self, slab: Slab, chain: Sequence[bytes], again: Sequence[bytes]) -> None:
        """A request contained the blocks of `chain`, in this order; for those in `again` it was not the first."""
        with self._changed:
            if self._state != READY or self.paused:
                return
            shelf = self._shelves.of(slab)
            self._shelves.choose(slab.fingerprint)
            shelf.index.touch(reversed(chain))
            run = [key for key in again if shelf.find(slab, key) is None]
            dropped = shelf.pending.add(run, time.monotonic())
            self._changed.notify_all()
        if dropped:
            self._account.count("disk_dropped_queue_full", dropped)

    def evicting(self, slab: Slab, block: Held) -> bool:
        """An owned block is being evicted, and the arena's lock is held: whether its slot is ours until it is given
        back."""
        with self._changed:
            return self._state == READY and self._shelves.of(slab).pending.take_over(
                block, slab.arena.slot_count, slab.slot_bytes, time.monotonic()
            )

    # -- reading -------------------------------------------------------------------------------------

    def find(self, slab: Slab, keys: Sequence[bytes]) -> list[Place | None]:
        """Where each block lies. No I/O."""
        with self._changed:
            if self._opened is None or slab.below is None:
                return [None] * len(keys)
            return [self._shelves.of(slab).find(slab, key) for key in keys]

    def read(self, read: Read, until: float) -> str:
        """Reads blocks of one file until a time on the monotonic clock; a reason, empty when all came."""
        opened, size = self._opened, sum(len(view) for _, view in read.places)
        slow_at = time.monotonic() + patience(size)

        def work(folder: Folder, _alive: Alive) -> bool:
            try:
                folder.read(read.name, read.header, read.places)
                return all(read.landed(i) for i in range(len(read.places)))
            finally:
                read.over()

        if opened is None:
            read.over()
            return "disk_failed"
        try:
            sound = opened.call(self._reads, work, min(until, slow_at), patience(size))
        except NoThread:
            read.over()
            return "busy"
        except LeftBehind:
            if time.monotonic() < slow_at:
                return "deadline"
            self._degrade(opened, DiskError(SLOW, f"{size} bytes were not read within {patience(size):.1f} s"))
            return "disk_failed"
        except Damaged as error:
            self._put_aside(opened, read.name, str(error))
            return "disk_failed"
        except DiskError as error:
            self._failed(opened, read.name, error)
            return "disk_failed"
        if not sound:
            self._put_aside(opened, read.name, "its bytes don't match their tags")
            return "disk_failed"
        self._damaged_in_a_row, self._pause = 0, FIRST_PAUSE_SECONDS
        return ""

    def _failed(self, opened: Opened | None, name: str, error: DiskError) -> None:
        if error.number != errno.ENOENT:
            self._degrade(opened, error)
            return
        self._account.count("disk_lost_files")
        with self._changed:
            self._shelves.remove(name)
            self._check_at = 0.0  # perhaps not that one alone

    def _put_aside(self, opened: Opened | None, name: str, detail: str) -> None:
        """A file that is not what was written: it serves nobody from now on."""
        log.error("the extent %s is put aside: %s", name, detail)
        self._account.count("disk_damaged_files")
        with self._changed:
            self._shelves.remove(name)
            self._damaged_in_a_row += 1
            too_many = self._damaged_in_a_row >= DAMAGED_IN_A_ROW
        if too_many:
            self._degrade(opened, DiskError(CORRUPT, f"{DAMAGED_IN_A_ROW} damaged files in a row"))
        elif opened is not None:
            with contextlib.suppress(DiskError, NoThread, LeftBehind):
                opened.call(self._reads, lambda folder, _alive: self._quarantine(folder, name), time.monotonic() + 1.0)

    def _quarantine(self, folder: Folder, name: str) -> None:
        folder.quarantine(name)
        kept = scanning.bounded(folder, folder.quarantined(), self._limit)
        with self._changed:
            for found in self._bad:
                self._shelves.remove(found.name)
            self._bad = kept
            for found in kept:
                self._shelves.add(found, None)

    # -- the tier's own thread -----------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            try:
                if self._opened is None:
                    self._wait(self._retry_at)
                    if not self._closing and time.monotonic() >= self._retry_at:
                        self._open()
                else:
                    self._step(self._opened)
            except DiskError as error:
                self._degrade(self._opened, error)
            except Exception:
                log.exception("the disk tier failed")
                self._degrade(self._opened, DiskError("unknown", "see the log"))
        self._drop_all("disk_dropped_closing")
        if self._opened is not None:
            self._opened.give_up()
        self.ended = True

    def _wait(self, until: float) -> None:
        with self._changed:
            self._changed.wait(min(LOOK_SECONDS, max(0.0, until - time.monotonic())))

    def _open(self) -> None:
        if self._last is not None and self._last.in_use:
            raise DiskError(SLOW, "a call on the folder has not come back")
        try:
            folder = self._writes.call(
                lambda _alive: Folder(self._path), time.monotonic() + scanning.CALL_SECONDS, Folder.close
            )
        except (NoThread, LeftBehind):
            raise DiskError(SLOW, "the folder was not opened in time") from None
        except OSError as error:
            raise of(error) from None
        with self._changed:
            self._opened = opened = Opened(folder)
        self._scan(opened)

    def _scan(self, opened: Opened) -> None:
        """Finds out anew what lies there."""
        slabs, has = self._slabs(), self._shelves
        volume = opened.patiently(self._writes, lambda folder, _alive: folder.volume_bytes, patience(0))
        self._limit = limit = min(self._size or volume, volume) * VOLUME_PERCENT // 100
        with self._changed:
            has.begin(slabs[0].fingerprint if slabs else b"", limit)

        def add(found: Found, header: ExtentHeader | None) -> None:
            with self._changed:
                has.add(found, header)

        began = time.monotonic()
        scanned = scanning.scan(opened, self._writes, limit, has, add, scanning.SCAN_SECONDS)
        self._bad, self._waiting = scanned.quarantined, scanned.waiting
        for shelf in has:
            self._make_room(opened, shelf, 0)
        for word, amount in scanned.counts.items():
            self._account.count(word, amount)
        with self._changed:
            if self._opened is opened:
                self._state, self._reason = READY, ""
        self._check_at = time.monotonic() + CHECK_SECONDS
        self._account.event("disk_ready", blocks=scanned.blocks, seconds=round(time.monotonic() - began, 3))

    def _step(self, opened: Opened) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._shelves.waiting, LOOK_SECONDS)
            late = [(shelf, *shelf.pending.late(time.monotonic())) for shelf in self._shelves]
        for shelf, keys, taken in late:
            self._give_back(shelf, taken)
            self._account.count("disk_dropped_late", keys + len(taken))
        self._follow_keys(opened)
        now = time.monotonic()
        if now >= self._check_at:
            opened.patiently(self._writes, lambda folder, _alive: folder.check(), patience(0))
            self._check_at = now + CHECK_SECONDS
        if self._full_until and now >= self._full_until:
            with self._changed:
                self._full_until = 0.0
                self._shelves.limit(self._limit)
        for slab in self._slabs():
            if not self._closing:
                self._write_next(opened, slab, self._shelves.of(slab))

    def _follow_keys(self, opened: Opened) -> None:
        """Removes what is sealed under keys that were taken back, and looks anew at what no key opened so far."""
        changed = [shelf for shelf in self._shelves if shelf.keys_changed()]
        if changed and self._waiting:
            self._scan(opened)
        for shelf in changed:
            with self._changed:
                names = shelf.give_up_unopened()
            if names:
                self._account.count("disk_unopened_files", len(names))
            self._remove(opened, names)

    def _write_next(self, opened: Opened, slab: Slab, shelf: Shelf) -> None:
        count = max(1, min(EXTENT_BYTES // slab.slot_bytes, MAX_BLOCKS))
        with self._changed:
            taken = shelf.pending.next_taken()
            keys = [] if taken is not None else shelf.pending.next_run(count)
        if taken is not None:
            try:
                self._write(opened, slab, shelf, [taken], lambda: True)
            finally:
                slab.arena.give_back([taken.slot])
        elif keys:
            seconds = patience(count * slab.slot_bytes) + 1.0
            lease, found = slab.arena.lease(keys, time.monotonic(), seconds)
            try:
                here = [block for block in found if block is not None]
                if len(here) < len(keys):
                    self._account.count("disk_dropped_evicted", len(keys) - len(here))
                own = [block for block in here if not block.foreign]
                # a lease that is over by then: the slots may have been written to meanwhile
                self._write(opened, slab, shelf, own, lambda: slab.arena.renew(lease, time.monotonic(), 1.0))
            finally:
                slab.arena.release(lease)

    def _write(
        self, opened: Opened, slab: Slab, shelf: Shelf, blocks: Sequence[Held], kept: Callable[[], bool]
    ) -> None:
        key = next(iter(shelf.keys), None)
        with self._changed:
            blocks = [block for block in blocks if shelf.find(slab, block.key) is None]
        if not blocks or (key is None and self._shelves.sealed):
            return
        header = header_of(slab, blocks, key)
        if header.file_bytes > shelf.index.limit:
            self._account.count("disk_dropped_no_room", len(blocks))
            return
        self._make_room(opened, shelf, header.file_bytes)
        views = [slab.view(block.slot) for block in blocks]

        def work(folder: Folder, alive: Alive) -> tuple[str, ExtentHeader] | None:
            if not all(intact(slab, block, self._account, log, " and not written") for block in blocks):
                return None
            return folder.write(header, views, lambda: alive() and kept(), key)

        try:
            written = opened.patiently(self._writes, work, patience(header.file_bytes))
        except DiskError as error:
            self._account.count("disk_dropped_failed", len(blocks))
            if error.word != FULL:
                raise
            with self._changed:  # others fill the volume: what lies here is all that fits
                self._full_until = time.monotonic() + FULL_SECONDS
                self._shelves.limit_to_used()
            self._account.count(FULL)
            return
        if written is None:
            self._account.count("disk_dropped_changed", len(blocks))
            return
        with self._changed:
            if self._opened is opened:
                shelf.index.add(written[0], header.file_bytes, written[1])
        self._pause = FIRST_PAUSE_SECONDS
        self._account.moved("disk_out", len(blocks), len(blocks) * slab.slot_bytes)

    def _make_room(self, opened: Opened, shelf: Shelf, size: int) -> None:
        with self._changed:
            blocks = len(shelf.index)
            names = shelf.index.make_room(size)
            blocks -= len(shelf.index)
        if blocks:
            self._account.count("disk_evicted_blocks", blocks)
        self._remove(opened, names)

    def _remove(self, opened: Opened, names: Sequence[str]) -> None:
        if names:
            opened.patiently(self._writes, scanning.removing(names), patience(0))

    # -- the end of it -------------------------------------------------------------------------------

    def _degrade(self, opened: Opened | None, error: DiskError) -> None:
        """No tier from now on, until a later try; a call on a folder that was given up before changes nothing."""
        with self._changed:
            if opened is not self._opened:
                return
            told = (self._state, self._reason) == (DEGRADED, error.word)
            self._opened, self._last = None, opened or self._last
            self._shelves.begin(b"", 0)
            self._full_until, self._damaged_in_a_row = 0.0, 0
            self._state, self._reason = DEGRADED, error.word
            self._retry_at = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        if opened is not None:
            opened.give_up()
        self._account.count(error.word)
        if not told:
            log.warning("no disk tier: %s", error)
            self._account.event("disk_degraded", reason=error.word, detail=str(error))
        self._drop_all("disk_dropped_failed")

    def _drop_all(self, word: str) -> None:
        with self._changed:
            dropped = [(shelf, *shelf.pending.clear()) for shelf in self._shelves]
        for shelf, keys, taken in dropped:
            self._give_back(shelf, taken)
            self._account.count(word, keys + len(taken))

    def _give_back(self, shelf: Shelf, taken: Sequence[Held]) -> None:
        slab = next((slab for slab in self._slabs() if self._shelves.of(slab) is shelf), None)
        if slab is not None and taken:
            slab.arena.give_back([block.slot for block in taken])
