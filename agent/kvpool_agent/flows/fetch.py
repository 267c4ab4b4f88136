"""Fetching blocks from one member into the arena: reserve, receive in place, check, publish.

Whatever came before a fault is kept. Slots that were not filled go back. A block that another fetch is already
bringing in is waited for instead of being fetched twice. How each fetch ended is told to the peer's breaker.
A source that is busy is asked again, so that a burst of requests is spread and not computed. What is asked for at a
time stays within the bounds of its purpose: a fetch never reserves the whole arena, a long one goes in parts.
"""

import collections
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from kvpool_agent.account import Account
from kvpool_agent.costs import Costs
from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.flows.external import ExternalSource
from kvpool_agent.peer.bounds import Gate, Pace
from kvpool_agent.peer.connection import PeerBusy, PeerError
from kvpool_agent.peer.dial import Dialer
from kvpool_agent.peer.rdma.reader import Reader
from kvpool_agent.peer.rdma.words import RdmaError
from kvpool_agent.policy.purposes import DEMAND, Purposes, Receiving, default_purposes
from kvpool_agent.store.arena import MayGo
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of
from kvpool_contract.external import STORE
from kvpool_contract.status import PEER

log = logging.getLogger("kvpool.fetch")

LEAST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.01, 2.0


@dataclass(frozen=True)
class Wanted:
    """A block to fetch and its parent in the chain (empty: none)."""

    key: bytes
    parent: bytes


@dataclass
class Watch:
    """A fetch as it goes: when its first byte was there, when its last one so far, and how many came. 0: none yet."""

    began: float
    first: float = 0.0
    last: float = 0.0
    size: int = 0
    asked: bool = False

    def begins(self) -> None:
        self.first = self.first or time.monotonic()

    def came(self, size: int) -> None:
        self.last, self.size = time.monotonic(), self.size + size

    def measure(self, costs: Costs, path: str, slot_bytes: int, deadline: float) -> None:
        """What the path has cost a request; one that was waited for in vain is as slow as its first block was late."""
        now, size = time.monotonic(), self.size
        if size:
            costs.moved(path, self.first - self.began, size, self.last - self.first)
        elif self.asked and now >= deadline:
            costs.moved(path, now - self.began, slot_bytes, now - self.began)


@dataclass(frozen=True)
class _Order:
    """From whom a fetch is made, for what, and who is told of each block."""

    slab: Slab
    address: str
    purpose: str
    deadline: float
    arrived: Callable[[int], None]
    checked: Callable[[bytes], None]
    may_go: MayGo | None
    soft: bool
    watch: Watch


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

    def __init__(
        self,
        dialer: Dialer,
        breakers: Breakers,
        account: Account,
        purposes: Callable[[], Purposes] = default_purposes,
        direct: Reader | None = None,
        external: ExternalSource | None = None,
    ) -> None:
        """purposes: the bounds that hold now. direct: how blocks are read by RDMA. external: the source that STORE
        names, where a member's address would stand."""
        self.costs = Costs()
        self._direct = direct
        self.external = external or ExternalSource(None)
        self._dialer = dialer
        self._breakers = breakers
        self._account = account
        self._purposes = purposes
        self._gates = {name: Gate(f"{name}_in", account.count) for name in purposes()}
        self._paces = {name: Pace(f"{name}_in", account.count) for name in purposes()}
        self.in_flight = InFlight()
        self._outstanding: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()

    def outstanding(self, address: str) -> int:
        """Bytes that requests wait for from there now."""
        with self._lock:
            return self._outstanding.get(address, 0)

    def fetch(
        self,
        slab: Slab,
        address: str,
        wanted: Sequence[Wanted],
        purpose: str,
        deadline: float,
        arrived: Callable[[int], None] = lambda _size: None,
        checked: Callable[[bytes], None] = lambda _key: None,
        may_go: MayGo | None = None,
        *,
        soft: bool = False,
    ) -> str:
        """Fetches the blocks that are neither here nor on their way; returns a reason, empty when all came.

        deadline: on the monotonic clock. `arrived(size)` and `checked(key)` are called for each block. soft: the
        deadline says when computing would have been faster, so a peer that does not keep it is no bad one. may_go:
        which blocks may make room, as Arena.reserve has it.
        """
        order = _Order(slab, address, purpose, deadline, arrived, checked, may_go, soft, Watch(time.monotonic()))
        size = len(wanted) * slab.slot_bytes if purpose == DEMAND else 0
        self._wait_for(address, size)
        try:
            with ExitStack() as kept:
                return self._in_parts(order, wanted, kept)
        finally:
            self._wait_for(address, -size)
            if purpose == DEMAND:
                order.watch.measure(self.costs, address, slab.slot_bytes, deadline)

    def _wait_for(self, address: str, size: int) -> None:
        with self._lock:
            self._outstanding[address] += size
            if not self._outstanding[address]:
                del self._outstanding[address]

    def _in_parts(self, order: _Order, wanted: Sequence[Wanted], kept: ExitStack) -> str:
        """One part after the other, each within the purpose's bounds; none after one that did not come whole. What has
        come is kept until the end: a later part that needs room would else take it from the beginning of its chain."""
        slab, purpose = order.slab, order.purpose
        arena_bytes = slab.arena.slot_count * slab.slot_bytes
        missing = not_here(slab, wanted)
        at = 0
        while at < len(missing):
            bounds = self._purposes()[purpose].receiving
            part = missing[at : at + bounds.part_blocks(slab.slot_bytes, arena_bytes)]
            at += len(part)
            if reason := self._part(order, part, bounds, arena_bytes):
                return reason
            if at < len(missing):
                keep(kept, slab, [w.key for w in part], order.deadline)
        return ""

    def _part(self, order: _Order, part: Sequence[Wanted], bounds: Receiving, arena_bytes: int) -> str:
        """Waits for the purpose's bounds, then fetches what is still not here. Only then it is claimed: a request would
        else wait for a block that a warm-up at its bounds has not even asked for."""
        slab, purpose = order.slab, order.purpose
        if not self._breakers.usable(order.address):  # before anything is waited for
            self._account.count("fetch_breaker_open")
            return self._breakers.reason([order.address])
        size, moved = len(part) * slab.slot_bytes, 0
        pace, gate = self._paces[purpose], self._gates[purpose]
        pace.wait(size, lambda: self._purposes()[purpose].receiving.bytes_per_second, slab.slot_bytes, order.deadline)

        def came(size: int) -> None:
            nonlocal moved
            moved += size
            order.arrived(size)

        with gate.entered(size, **bounds.places(arena_bytes), deadline=order.deadline) as found:
            if found:
                reason = self._claimed(replace(order, arrived=came), part)
            else:
                reason = "deadline" if time.monotonic() >= order.deadline else "busy"
                self._account.count(f"fetch_{reason}")
        if moved < size:
            pace.give_back(size - moved, bounds.bytes_per_second, slab.slot_bytes)
        return reason

    def _claimed(self, order: _Order, part: Sequence[Wanted]) -> str:
        # claimed first, then looked for: what another fetch has just brought in is not fetched again
        mine = self.in_flight.claim(part)
        try:
            missing = not_here(order.slab, mine)
            return self._fetch(order, missing) if missing else ""
        finally:
            self.in_flight.settle(mine)

    def _fetch(self, order: _Order, wanted: Sequence[Wanted]) -> str:
        slab, address, purpose, deadline = order.slab, order.address, order.purpose, order.deadline
        if not self._breakers.begin(address):
            self._account.count("fetch_breaker_open")
            return self._breakers.reason([address])
        slots, reason = reserved(slab, len(wanted), order.may_go, copies=True)
        if not slots:
            self._breakers.put_off(address)
            return reason
        rest = list(wanted[: len(slots)])
        landed, count = 0, len(rest)
        own: set[bytes] = set()  # what this member has computed itself, and another place has kept
        moved = "external_in" if address == STORE else f"{purpose}_in"

        def commit(block: Wanted, tag: bytes, slot: int) -> None:
            nonlocal landed
            foreign = block.key not in own
            if foreign:
                self._account.computed_elsewhere(block.key, address)
            if purpose == DEMAND:
                self._account.brought(block.key, STORE if address == STORE else PEER)
            landed += 1
            slab.arena.commit(block.key, block.parent, slot, tag, foreign=foreign)
            self._account.moved(moved, 1, slab.slot_bytes)
            order.watch.came(slab.slot_bytes)
            order.checked(block.key)
            order.arrived(slab.slot_bytes)

        def land(index: int, tag: bytes, length: int, read_into: Callable[[memoryview], None]) -> None:
            if length != slab.slot_bytes:
                raise PeerError(f"a block of {length} bytes, slots have {slab.slot_bytes}")
            if index >= len(rest) or not slots:
                raise PeerError("more blocks than were asked for")
            slot, block = slots[-1], rest[index]
            view = slab.view(slot)
            order.watch.begins()
            read_into(view)
            if tag_of(block.key, view) != tag:
                self._account.count("tag_failures")
                raise PeerError("a block's bytes don't match their tag")
            slots.pop()
            commit(block, tag, slot)

        def ask() -> bool:
            nonlocal rest
            if address == STORE:
                return self.external.fetch(slab, [w.key for w in rest], deadline, land, own.add)
            if self._direct is not None and self._direct.ready(slab, purpose):
                asked, came = rest, set[int]()

                def direct(index: int, tag: bytes, slot: int) -> None:
                    came.add(index)
                    commit(asked[index], tag, slot)

                try:
                    keys, begins = [w.key for w in asked], order.watch.begins
                    return self._direct.fetch(slab, address, keys, purpose, deadline, slots, begins, direct)
                except RdmaError as error:
                    self._account.count(f"fallback_{error.reason}")
                    rest = [w for i, w in enumerate(asked) if i not in came]
                    if len(slots) < len(rest):  # some may still be written to
                        raise PeerError("slots are lost to a read that has not ended") from None
            return self._dialer.fetch(address, slab.id, [w.key for w in rest], purpose, deadline, land)

        began = time.monotonic()
        order.watch.asked = True
        try:
            stopped = self._patiently(ask, self._purposes()[purpose].receiving.busy_tries, deadline)
            self._served(address, landed * slab.slot_bytes, time.monotonic() - began)
            reason = reason or ("" if landed == count else "busy" if stopped else "evicted")
        except PeerError as error:
            now = time.monotonic()
            reason = self._fault(order, error, landed * slab.slot_bytes, now - began, now >= deadline)
            self._account.count(f"fetch_{reason}")
            log.info("fetch of %d blocks from %s ended after %d: %s", count, address, landed, error)
        finally:
            slab.arena.give_back(slots)
        return reason

    def _patiently(self, ask: Callable[[], bool], tries: int, deadline: float) -> bool:
        """Asks so many times again when the source is busy, after the pause that it named; what it answers at last."""
        for _ in range(tries):
            try:
                return ask()
            except PeerBusy as busy:
                # in this order: whatever the peer has written there, also what is no number, gives a pause
                pause = min(LONGEST_PAUSE_SECONDS, max(LEAST_PAUSE_SECONDS, busy.retry_after))
                if time.monotonic() + pause >= deadline:
                    raise
                self._account.count("fetch_asked_again")
                time.sleep(pause)
        return ask()

    def _served(self, address: str, size: int, seconds: float) -> None:
        """A member that promised blocks and has none of them is no better than one that breaks off."""
        if size:
            self._breakers.succeeded(address, size, seconds)
        else:
            self._breakers.failed(address)

    def _fault(self, order: _Order, error: PeerError, size: int, seconds: float, late: bool) -> str:
        address = order.address
        if isinstance(error, PeerBusy) or (late and order.soft):
            self._breakers.put_off(address)
            return "deadline" if late else "busy"
        if late:
            self._breakers.late(address, size, seconds)
            return "deadline"
        self._breakers.failed(address)
        return "transfer_failed"


def not_here(slab: Slab, wanted: Sequence[Wanted]) -> list[Wanted]:
    held = slab.arena.held([w.key for w in wanted])
    return [w for w, here in zip(wanted, held, strict=True) if not here]


def reserved(slab: Slab, count: int, may_go: MayGo | None = None, *, copies: bool = False) -> tuple[list[int], str]:
    """Slots to bring blocks into, and why they are fewer than `count`. copies: of other members' blocks."""
    now = time.monotonic()
    writable = slab.arena.writable(now)
    slots = slab.arena.reserve(count, now, may_go, copies=copies)
    return slots, "" if len(slots) == count else "no_room" if writable else "just_restarted"


def keep(kept: ExitStack, slab: Slab, keys: Sequence[bytes], deadline: float) -> None:
    """Keeps what has come of a transfer until the transfer ends: at the deadline, or when `kept` is left."""
    now = time.monotonic()
    lease, _ = slab.arena.lease(keys, now, max(0.0, deadline - now))
    kept.callback(slab.arena.release, lease)
