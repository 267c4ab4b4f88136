"""Other members' reads from the arena: leases over a bounded number of bytes, renewed by progress.

A long fetch keeps only its next few blocks from eviction, and all readers of a purpose together a part of the arena;
beyond that they are told to ask again. A lease lasts as long as sending one block may: a reader that goes on renews it
with each block, and after one that stands still the slots are free again, whatever its thread does.
"""

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

from kvpool_agent.account import Account
from kvpool_agent.peer.bounds import Gate
from kvpool_agent.peer.connection import BUSY_RETRY_SECONDS, PROGRESS_SECONDS, PeerBusy
from kvpool_agent.peer.lend import Lot
from kvpool_agent.peer.lending import MAX_LENT
from kvpool_agent.peer.serve import read_seconds
from kvpool_agent.policy.purposes import DEMAND, LENT_BYTES, STREAM_BYTES, Purposes, default_purposes
from kvpool_agent.store.arena import Held
from kvpool_agent.store.intact import intact
from kvpool_agent.store.slab import Slab

log = logging.getLogger("kvpool.answer")

Readable = tuple[int, bytes, memoryview]  # index among the keys, tag, bytes


class _Handed:
    """`open`: a block was given to the reader, who has not come back for the next one."""

    open = False


class Reading:
    """Any thread may call."""

    def __init__(self, account: Account, purposes: Callable[[], Purposes] = default_purposes) -> None:
        """purposes: the bounds that hold now."""
        self._account = account
        self._purposes = purposes
        self._gates = {name: Gate(f"{name}_kept", account.count) for name in purposes()}

    @contextmanager
    def blocks(self, slab: Slab, keys: Sequence[bytes], purpose: str) -> Iterator[Iterator[Readable]]:
        """The blocks that are held, in order. Each is to be sent within `read_seconds` of its bytes. Raises PeerBusy
        where the purpose's readers keep all that they may."""
        with self._entered(slab, keys, purpose, STREAM_BYTES) as window:
            handed = _Handed()
            reads = self._windows(slab, keys, window, handed, lambda: self._moved(purpose, slab))
            try:
                yield reads
            except BaseException:
                handed.open = False  # the last one did not arrive
                raise
            finally:
                reads.close()
                if handed.open:
                    self._moved(purpose, slab)

    @contextmanager
    def lots(self, slab: Slab, keys: Sequence[bytes], purpose: str) -> Iterator[Iterator[Lot]]:
        """The blocks, in lots, for a reader that takes them out of this memory itself; it comes back for the next lot
        when it has. Their tags are the reader's to check: these bytes are not looked at here. Raises PeerBusy."""
        with self._entered(slab, keys, purpose, LENT_BYTES) as window:
            lots = self._lots(slab, keys, min(window, MAX_LENT))
            try:
                yield lots
            finally:
                lots.close()

    def taken(self, slab: Slab, purpose: str, blocks: int) -> None:
        """A reader says that it has read so many."""
        self._account.moved(f"{purpose}_out", blocks, blocks * slab.slot_bytes)
        self._account.moved("rdma_out", blocks, blocks * slab.slot_bytes)

    @contextmanager
    def _entered(self, slab: Slab, keys: Sequence[bytes], purpose: str, most: int) -> Iterator[int]:
        """A place among the purpose's readers, and how many blocks this one keeps at a time, of `most` bytes."""
        bounds, arena_bytes = self._purposes()[purpose].sending, slab.arena.slot_count * slab.slot_bytes
        window = min(bounds.window_blocks(slab.slot_bytes, arena_bytes, most), len(keys))
        size = window * slab.slot_bytes
        with self._gates[purpose].entered(size, streams=bounds.streams, room=bounds.room(arena_bytes)) as found:
            if not found:
                raise PeerBusy(BUSY_RETRY_SECONDS)
            if purpose == DEMAND:
                slab.arena.use(keys)
            yield window

    @staticmethod
    def _lots(slab: Slab, keys: Sequence[bytes], window: int) -> Generator[Lot]:
        seconds = read_seconds(window * slab.slot_bytes)
        for start in range(0, len(keys), max(window, 1)):
            # longer than the reader is told: its time begins when it hears of it, and its queue pair outlives it
            leased = seconds + PROGRESS_SECONDS
            lease, held = slab.arena.lease(keys[start : start + window], time.monotonic(), leased)
            try:
                places = [None if one is None else (one.slot * slab.slot_bytes, one.tag) for one in held]
                yield Lot(start, seconds, places, slab.slot_bytes * sum(one is not None for one in held))
            finally:
                slab.arena.release(lease)

    def _moved(self, purpose: str, slab: Slab) -> None:
        self._account.moved(f"{purpose}_out", 1, slab.slot_bytes)

    def _windows(
        self, slab: Slab, keys: Sequence[bytes], window: int, handed: _Handed, gone: Callable[[], None]
    ) -> Generator[Readable]:
        for start in range(0, len(keys), max(window, 1)):
            yield from self._window(slab, keys[start : start + window], start, handed, gone)

    def _window(
        self, slab: Slab, keys: Sequence[bytes], start: int, handed: _Handed, gone: Callable[[], None]
    ) -> Generator[Readable]:
        arena, seconds = slab.arena, read_seconds(slab.slot_bytes)
        lease, held = arena.lease(keys, time.monotonic(), seconds)
        try:
            for index in range(len(keys)):
                if not arena.renew(lease, time.monotonic(), seconds):  # this reader was waited for longer than that
                    self._account.count("read_leases_ended")
                    lease, rest = arena.lease(keys[index:], time.monotonic(), seconds)
                    held[index:] = rest
                block: Held | None = held[index]
                if block is not None and intact(slab, block, self._account, log, " and not sent"):
                    handed.open = True
                    yield start + index, block.tag, slab.view(block.slot)
                    handed.open = False
                    gone()
        finally:
            arena.release(lease)
