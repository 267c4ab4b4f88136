"""Storing what the engine computed: row → slot, tag, told as copied; published when the client commits.

One thread copies; its queue is bounded, and a job that finds it full is answered at once, uncopied. Only blocks that
are not here are copied. A slot whose commit does not come is free again: the row may have been another's by then.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvpool_agent.account import Account
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of
from kvpool_client.memory import ReadOnlyMapping, copy

log = logging.getLogger("kvpool.store")

QUEUE_JOBS = 256
MAX_UNCOMMITTED = 1024
COPY_SECONDS = 30.0
# from a copy to its commit: a client gives its store up long before, and says so, unless it has lost the word
COMMIT_SECONDS = 30.0
LONG_WAITING_PART = 4


@dataclass(frozen=True)
class HostPool:
    """The engine's host pool, mapped read-only: `rows` rows of `row_bytes` bytes."""

    mapping: ReadOnlyMapping
    rows: int
    row_bytes: int


@dataclass(frozen=True)
class Offer:
    """A block offered for storing: its key, its parent's, the row it lies in."""

    key: bytes
    parent: bytes
    row: int


@dataclass
class _Copied:
    """`until`: when its commit must have come."""

    slab: Slab
    until: float = math.inf
    blocks: list[tuple[Offer, int, bytes]] = field(default_factory=list)


class Uncommitted:
    """The copied jobs of one session that wait for their commit."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.jobs: dict[int, _Copied] = {}
        self.closed = False

    def room(self, slots: int) -> int:
        """How many blocks more may wait for long: they can't be evicted, so it is a part of the arena alone."""
        with self.lock:
            return max(0, slots // LONG_WAITING_PART - sum(len(job.blocks) for job in self.jobs.values()))

    def committed(self, job: int) -> None:
        """The commit of this job has come, whenever it is acted upon."""
        with self.lock:
            if (copied := self.jobs.get(job)) is not None:
                copied.until = math.inf

    def overdue(self, now: float) -> list[int]:
        """The jobs whose commit has not come."""
        with self.lock:
            return [job for job, copied in self.jobs.items() if copied.until <= now]


# job, whether every block is here now, blocks copied
Reply = Callable[[int, bool, int], None]


class StoreFlow:
    """Any thread may call; one thread copies."""

    def __init__(self, account: Account, pending: Callable[[], bool] = lambda: False) -> None:
        """pending: whether what is committed may have to wait for a verdict on the engine before it is published."""
        self._account = account
        self._pending = pending
        self.paused = False
        self._queue: queue.Queue[tuple[Slab, HostPool, Uncommitted, int, Sequence[Offer], Reply] | None] = queue.Queue(
            QUEUE_JOBS
        )
        self._thread = threading.Thread(target=self._run, name="kvpool-store", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._queue.put(None)

    def submit(
        self,
        slab: Slab,
        pool: HostPool,
        open_jobs: Uncommitted,
        job: int,
        offers: Sequence[Offer],
        reply: Reply,
    ) -> None:
        if self.paused:
            self._account.count("stores_paused")
            reply(job, False, 0)
            return
        try:
            self._queue.put_nowait((slab, pool, open_jobs, job, offers, reply))
        except queue.Full:
            self._account.count("stores_refused_busy")
            reply(job, False, 0)

    def commit(self, open_jobs: Uncommitted, job: int) -> None:
        """The engine's job was open when we said copied: the blocks are what their keys say."""
        with open_jobs.lock:
            copied = open_jobs.jobs.pop(job, None)
        if copied is None:
            return
        for offer, slot, tag in copied.blocks:
            self._account.computed_here(offer.key)
            if copied.slab.arena.commit(offer.key, offer.parent, slot, tag, foreign=False):
                self._account.moved("store_in", 1, copied.slab.slot_bytes)

    def forget(self, open_jobs: Uncommitted, job: int) -> None:
        """The engine's job had ended before: what was copied may be anything."""
        with open_jobs.lock:
            copied = open_jobs.jobs.pop(job, None)
        if copied is not None:
            self._account.count("stores_forgotten")
            copied.slab.arena.give_back(slot for _, slot, _ in copied.blocks)

    def end_session(self, open_jobs: Uncommitted) -> None:
        with open_jobs.lock:
            open_jobs.closed = True
            jobs = list(open_jobs.jobs)
        for job in jobs:
            self.forget(open_jobs, job)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            slab, pool, open_jobs, job, offers, reply = item
            whole, stored = False, 0
            try:
                if pool.mapping.retain():
                    try:
                        whole, stored = self._copy(slab, pool, open_jobs, job, offers)
                    finally:
                        pool.mapping.release()
            except Exception:
                log.exception("store failed")
            reply(job, whole, stored)

    def _copy(
        self, slab: Slab, pool: HostPool, open_jobs: Uncommitted, job: int, offers: Sequence[Offer]
    ) -> tuple[bool, int]:
        # marks the chain as used and keeps it: a store must not make room by evicting its own prefix
        chain = dict.fromkeys(key for o in offers for key in (o.parent, o.key) if key)
        lease, _ = slab.arena.lease(list(chain), time.monotonic(), COPY_SECONDS)
        try:
            return self._copy_missing(slab, pool, open_jobs, job, offers)
        finally:
            slab.arena.release(lease)

    def _copy_missing(
        self, slab: Slab, pool: HostPool, open_jobs: Uncommitted, job: int, offers: Sequence[Offer]
    ) -> tuple[bool, int]:
        for late in open_jobs.overdue(time.monotonic()):
            self.forget(open_jobs, late)
        copied = _Copied(slab)
        whole = True
        room = open_jobs.room(slab.arena.slot_count) if self._pending() else len(offers)
        here = slab.arena.held([o.key for o in offers])
        for offer, known in zip(offers, here, strict=True):
            if known:
                continue
            if len(copied.blocks) >= room:
                self._account.count("stores_await_verdict")
                whole = False
                break
            now = time.monotonic()
            writable = slab.arena.writable(now)
            slots = slab.arena.reserve(1, now)
            if not slots:
                self._account.count("stores_without_room" if writable else "stores_just_restarted")
                whole = False
                break
            slot = slots[0]
            copy(slab.address(slot), pool.mapping.address + offer.row * pool.row_bytes, pool.row_bytes)
            copied.blocks.append((offer, slot, tag_of(offer.key, slab.view(slot))))
        with open_jobs.lock:
            keep = not open_jobs.closed and len(open_jobs.jobs) < MAX_UNCOMMITTED
            if keep:
                copied.until = time.monotonic() + COMMIT_SECONDS
                open_jobs.jobs[job] = copied
        if not keep:
            slab.arena.give_back(slot for _, slot, _ in copied.blocks)
            return False, 0
        return whole, len(copied.blocks)
