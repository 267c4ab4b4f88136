"""The copy thread: moves blocks from the agent's arena into rows of the engine's host pool, under leases.

A lease is asked for when the thread comes to the job, so its time is spent on copying and not on waiting. After
each copy the block counts only if the session that gave the lease is still the current one and the lease has time
left: then nobody can have written the slot in between. Whatever is not copied is reported as failed, and computed.
"""

import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

from kvpool_client import wire
from kvpool_client.ledger import Ledger
from kvpool_client.memory import copy
from kvpool_client.session import Attached, Session

log = logging.getLogger("kvpool.client")

# keys per lease: small enough that a lease's two seconds suffice on a slow machine
LEASE_BYTES = 256 << 20
CALL_SECONDS = 2.0


# job, blocks, the plan that promised them, what a load says besides
_Queued = tuple[int, Sequence[tuple[bytes, int]], int, dict[str, str]]


class Loader:
    """Owns the thread. Rows: `row_bytes` each, from `address` on."""

    def __init__(self, session: Session, ledger: Ledger, address: int, row_bytes: int) -> None:
        self._session = session
        self._ledger = ledger
        self._address = address
        self._row_bytes = row_bytes
        self._jobs: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kvpool-load", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(
        self, job: int, blocks: Sequence[tuple[bytes, int]], plan: int, said: dict[str, str] | None = None
    ) -> None:
        """Queues a job that is open in the ledger: (key, row) of each block, the plan that promised them, and what is
        said of their request."""
        self._jobs.put((job, blocks, plan, said or {}))

    def close(self) -> None:
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, blocks, plan, said = item
            try:
                self._load(job, blocks, plan, said)
            except Exception:
                log.exception("kvpool: a load failed")
            self._ledger.close(job, success=False)

    def _load(self, job: int, blocks: Sequence[tuple[bytes, int]], plan: int, said: dict[str, str]) -> None:
        attached = self._session.attached
        if attached is None or not attached.arena.retain():
            return
        try:
            step = max(1, LEASE_BYTES // self._row_bytes)
            for i in range(0, len(blocks), step):
                # the last lease takes the place of what the plan has kept until now
                header = {"verb": "load", "done_plan": plan if i + step >= len(blocks) else 0, **said}
                if not self._load_under_lease(job, blocks[i : i + step], attached, header):
                    return
        finally:
            attached.arena.release()

    def _load_under_lease(
        self, job: int, blocks: Sequence[tuple[bytes, int]], attached: Attached, header: dict[str, Any]
    ) -> bool:
        asked_at = time.monotonic()
        keys = b"".join(key for key, _ in blocks)
        reply = self._session.call(header, keys, CALL_SECONDS)
        if reply is None or reply.verb != "leased":
            return False
        try:
            return self._copy_all(job, blocks, reply.header["slots"], attached, asked_at + attached.lease_seconds)
        finally:
            self._session.post({"verb": "release", "lease": reply.header["lease"]})

    def _copy_all(
        self, job: int, blocks: Sequence[tuple[bytes, int]], slots: Sequence[int], attached: Attached, expires: float
    ) -> bool:
        if len(slots) != len(blocks):
            raise wire.WireError(f"lease of {len(slots)} slots for {len(blocks)} blocks")
        for (key, row), slot in zip(blocks, slots, strict=True):
            if slot < 0:
                continue
            source = int(slot) * attached.slot_bytes
            if source + self._row_bytes > attached.arena.size:
                raise wire.WireError(f"slot {slot} lies outside the arena")
            if not self._ledger.begin_copy(job, time.monotonic()):
                return False
            copy(self._address + row * self._row_bytes, attached.arena.address + source, self._row_bytes)
            valid = self._session.attached is attached and time.monotonic() < expires
            self._ledger.end_copy(job, key, valid=valid)
        return True
