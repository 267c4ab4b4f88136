"""Fetching blocks from one member into the arena: reserve, receive in place, check, publish.

Whatever came before a fault is kept. Slots that were not filled go back. A block that another fetch is already
bringing in is waited for instead of being fetched twice.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvpool_agent.account import Account
from kvpool_agent.peer.connection import PeerError
from kvpool_agent.peer.dial import Dialer
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of

log = logging.getLogger("kvpool.fetch")


@dataclass(frozen=True)
class Wanted:
    """A block to fetch and its parent in the chain (empty: none)."""

    key: bytes
    parent: bytes


class InFlight:
    """Which blocks are being fetched now, so that a second asker waits for the first one's bytes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._keys: set[bytes] = set()

    def claim(self, wanted: Sequence[Wanted]) -> list[Wanted]:
        """Those that nobody is fetching; they are now claimed by the caller, who must `settle` them."""
        with self._changed:
            mine = [w for w in wanted if w.key not in self._keys]
            self._keys.update(w.key for w in mine)
            return mine

    def settle(self, wanted: Sequence[Wanted]) -> None:
        with self._changed:
            self._keys.difference_update(w.key for w in wanted)
            self._changed.notify_all()

    def wait_for(self, keys: Sequence[bytes], deadline: float) -> None:
        """Waits until none of the keys is in flight, or the deadline on the monotonic clock."""
        with self._changed:
            self._changed.wait_for(lambda: self._keys.isdisjoint(keys), timeout=max(0.0, deadline - time.monotonic()))


class Fetcher:
    """Any thread may call."""

    def __init__(self, dialer: Dialer, account: Account) -> None:
        self._dialer = dialer
        self._account = account
        self.in_flight = InFlight()

    def fetch(
        self,
        slab: Slab,
        address: str,
        wanted: Sequence[Wanted],
        purpose: str,
        deadline: float,
        arrived: Callable[[int], None] = lambda _size: None,
    ) -> str:
        """Fetches the blocks that are neither here nor on their way; returns a reason, empty when all came.

        deadline: on the monotonic clock. `arrived(size)` is called for each block.
        """
        # claimed first, then looked for: what another fetch has just brought in is not fetched again
        mine = self.in_flight.claim(wanted)
        try:
            held = slab.arena.held([w.key for w in mine])
            missing = [w for w, here in zip(mine, held, strict=True) if not here]
            return self._fetch(slab, address, missing, purpose, deadline, arrived) if missing else ""
        finally:
            self.in_flight.settle(mine)

    def _fetch(
        self,
        slab: Slab,
        address: str,
        wanted: Sequence[Wanted],
        purpose: str,
        deadline: float,
        arrived: Callable[[int], None],
    ) -> str:
        now = time.monotonic()
        writable = slab.arena.writable(now)
        slots = slab.arena.reserve(len(wanted), now)
        short = len(slots) < len(wanted)
        reason = "" if not short else "no_room" if writable else "just_restarted"
        wanted = wanted[: len(slots)]
        landed = 0

        def land(index: int, tag: bytes, length: int, read_into: Callable[[memoryview], None]) -> None:
            nonlocal landed
            if length != slab.slot_bytes:
                raise PeerError(f"a block of {length} bytes, slots have {slab.slot_bytes}")
            if index >= len(wanted) or not slots:
                raise PeerError("more blocks than were asked for")
            slot, block = slots[-1], wanted[index]
            view = slab.view(slot)
            read_into(view)
            if tag_of(block.key, view) != tag:
                self._account.count("tag_failures")
                raise PeerError("a block's bytes don't match their tag")
            slots.pop()
            self._account.computed_elsewhere(block.key)
            if slab.arena.commit(block.key, block.parent, slot, tag, foreign=True):
                landed += 1
            self._account.moved(f"{purpose}_in", 1, length)
            arrived(length)

        try:
            if wanted:
                self._dialer.fetch(address, slab.fingerprint, [w.key for w in wanted], purpose, deadline, land)
                reason = reason or ("" if landed == len(wanted) else "evicted")
        except PeerError as error:
            reason = (
                "deadline" if time.monotonic() >= deadline else "busy" if "busy" in str(error) else "transfer_failed"
            )
            self._account.count(f"fetch_{reason}")
            log.info("fetch of %d blocks from %s ended after %d: %s", len(wanted), address, landed, error)
        finally:
            slab.arena.give_back(slots)
        return reason
