"""Admission: how far a request is loaded, given what loading and computing have cost lately.

Every boundary that could be reached is weighed: with all sources, then without the slowest one of them, and so on. What
is refused would never be measured again, so it is tried, ever more rarely (policy.tries): a few blocks of it are
fetched while the request is computed, so that nobody waits for a try. Only what lies between arena and engine needs a
real load to be measured, and one is let through.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvpool_agent.account import Account
from kvpool_agent.costs import DISK
from kvpool_agent.directory.locate import Holders
from kvpool_agent.flows.disk import DiskSource
from kvpool_agent.flows.fetch import Fetcher, Wanted
from kvpool_agent.flows.request import Request, anywhere, in_arena, not_in_arena, pieces_of
from kvpool_agent.policy.admission import (
    ALWAYS,
    MEASURED,
    Offer,
    asking_pays,
    chosen,
    patience,
)
from kvpool_agent.policy.boundary import first_lacking, longest
from kvpool_agent.policy.purposes import DEMAND
from kvpool_agent.policy.tries import Tries
from kvpool_agent.store.slab import Slab
from kvpool_contract.config import Loading

MAX_OFFERS = 4  # for one request: with all sources, and so many times without the slowest one left
TRY_BLOCKS, TRY_BYTES = 4, 16 << 20
TRIED_SECONDS = 5.0  # for a try at most
TRIES_AT_A_TIME = 2  # of all ways: a try takes one of the threads and streams of requests, for as long as that
INSTALL, LOOKUP = "install", "lookup"  # what is tried beside paths


@dataclass(frozen=True)
class Admitted:
    """Up to where a request is loaded, from which members, whether from the disk, until when; `soft`: because it would
    have been faster to compute. `planned`: up to where it could be loaded."""

    boundary: int
    planned: int
    found: Holders
    disk: bool
    deadline: float
    soft: bool = False


@dataclass(frozen=True)
class _Way:
    """An offer, and the sources that it asks."""

    offer: Offer
    found: Holders
    disk: bool


class Admission:
    """Any thread may call."""

    def __init__(
        self,
        fetcher: Fetcher,
        disk: DiskSource,
        account: Account,
        submit: Callable[[Callable[[], object]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """submit: has something done on another thread. clock: of the tries alone."""
        self.loading = Loading(mode=ALWAYS)
        self._fetcher, self._disk, self._account = fetcher, disk, account
        self._costs = fetcher.costs
        self._submit, self._clock = submit, clock
        self._lock = threading.Lock()
        self._tries = Tries()
        self._places = threading.Semaphore(TRIES_AT_A_TIME)

    def asks(self, request: Request) -> bool:
        """Whether it may pay to ask members what they hold of a request of which nothing lies here."""
        loading = self.loading
        if loading.mode != MEASURED:
            return True
        end = min(blocks.tokens for blocks in request.blocks)
        cost = self._costs.recompute(first_lacking(request.blocks), end)
        if asking_pays(self._costs.lookup(), cost, loading.margin):
            self._pay([LOOKUP])
            return True
        return self._try(LOOKUP)

    def admit(
        self, slab: Slab, request: Request, near: Sequence[Sequence[bool]], found: Holders, deadline: float
    ) -> Admitted:
        """near: what of its blocks lies in the arena or on the disk, by group."""
        planned = longest(request.blocks, anywhere(near, found), request.room)
        start = first_lacking(request.blocks)
        if self.loading.mode != MEASURED or planned <= start:
            return Admitted(planned, planned, found, True, deadline)
        ways = self._ways(slab, request, near, found, start, planned)
        best = chosen([way.offer for way in ways], self.loading.margin)
        if best is not None:
            self._pay([*best.parts, INSTALL])
        elif self._through(ways[0].offer):
            best = ways[0].offer
        if best is not ways[0].offer:
            self._account.count("loads_refused" if best is None else "loads_shortened")
            self._try_again(slab, request, ways[0])
        way = next((way for way in ways if way.offer is best), None)
        if best is None or way is None:
            nobody = Holders([{} for _ in request.blocks], found.reason, found.asked)
            return Admitted(0, planned, nobody, False, deadline)
        soft = patience(best.recompute)
        until = deadline if soft is None else min(deadline, time.monotonic() + soft)
        return Admitted(best.boundary, planned, way.found, way.disk, until, until < deadline)

    # -- inside --------------------------------------------------------------------------------------

    def _ways(
        self, slab: Slab, request: Request, near: Sequence[Sequence[bool]], found: Holders, start: int, planned: int
    ) -> list[_Way]:
        """start: where loading begins; planned: up to where it could go, with all sources."""
        ways: list[_Way] = []
        boundary, disk = planned, True
        beside = self._costs.interference()
        known: dict[int, tuple[float, float | None]] = {}  # by boundary: installing and computing
        while boundary > start and len(ways) < MAX_OFFERS:
            if boundary not in known:
                known[boundary] = self._install(slab, request, boundary), self._costs.recompute(start, boundary)
            sizes = self._sizes(slab, request, boundary, found, disk)
            parts = {path: self._costs.remote(path, size) for path, size in sizes.items()}
            ways.append(_Way(Offer(boundary, parts, *known[boundary], beside), found, disk))
            slowest = ways[-1].offer.slowest
            if not slowest:
                break
            if slowest == DISK:
                near, disk = in_arena(slab, request), False
            else:
                without = [{a: row for a, row in rows.items() if a != slowest} for rows in found.held]
                found = replace(found, held=without)
            boundary = longest(request.blocks, anywhere(near, found), request.room)
        return ways

    def _install(self, slab: Slab, request: Request, boundary: int) -> float:
        """As it is measured: by the blocks of the reference group (flows.finished)."""
        return self._costs.install((request.beyond(0) - request.beyond(boundary)) * slab.slot_bytes)

    def _sizes(self, slab: Slab, request: Request, boundary: int, found: Holders, disk: bool) -> Mapping[str, int]:
        """Bytes by path: what is not in the arena, and what is being fetched from there already."""
        sizes: dict[str, int] = {}
        indexes, lacking = not_in_arena(slab, request, boundary)
        stored = self._disk.held(slab, [w.key for w in lacking]) if disk else []
        if any(stored):
            sizes[DISK] = sum(stored) * slab.slot_bytes
            flags = iter(stored)
            indexes = [[i for i in group if not next(flags)] for group in indexes]
        for address, blocks, _ in pieces_of(request, indexes, found.held):
            sizes[address] = sizes.get(address, 0) + len(blocks) * slab.slot_bytes
        return {path: size + self._fetcher.outstanding(path) for path, size in sizes.items()}

    def _through(self, offer: Offer) -> bool:
        """Whether a refused load is let through, since nothing else measures what comes after the transfer."""
        return offer.held_up_by_install(self.loading.margin) and self._try(INSTALL)

    def _try_again(self, slab: Slab, request: Request, way: _Way) -> None:
        """Fetches a few blocks of what was refused, for its own sake, on another thread."""
        offer, most = way.offer, max(1, min(TRY_BLOCKS, TRY_BYTES // slab.slot_bytes))
        indexes, lacking = not_in_arena(slab, request, offer.boundary)
        for address, blocks, _ in pieces_of(request, indexes, way.found.held):
            if address in offer.parts and self._may_begin(address):
                self._begin(slab, offer, address, blocks[:most])
        if DISK in offer.parts and self._may_begin(DISK):
            here = self._disk.held(slab, [w.key for w in lacking])
            stored = [w for w, lies in zip(lacking, here, strict=True) if lies][:most]
            self._begin(slab, offer, DISK, stored)

    def _may_begin(self, way: str) -> bool:
        """Whether a try of this way may begin, beside those that go on; then `_begin` must follow."""
        if not self._places.acquire(blocking=False):
            return False
        if self._try(way):
            return True
        self._places.release()
        return False

    def _begin(self, slab: Slab, offer: Offer, path: str, blocks: list[Wanted]) -> None:
        """Has the blocks brought; so fast that all of the offer would pay, the next try comes soon."""
        self._account.count("loads_tried")
        expected = self._costs.remote(path, len(blocks) * slab.slot_bytes)
        margin = self.loading.margin

        def bring() -> None:
            began = time.monotonic()
            try:
                reason = self._bring(slab, path, blocks, began + TRIED_SECONDS)
                took = time.monotonic() - began
                if not reason and expected and offer.pays_where(path, took / expected, margin):
                    self._pay([path])
            finally:
                self._places.release()

        self._submit(bring)

    def _bring(self, slab: Slab, path: str, blocks: list[Wanted], deadline: float) -> str:
        """Why not all of the blocks came; empty when they did."""
        if path == DISK:
            return self._disk.load(slab, blocks, deadline)
        return self._fetcher.fetch(slab, path, blocks, DEMAND, deadline)

    def _try(self, way: str) -> bool:
        """Whether a way that is refused may be tried now."""
        with self._lock:
            return self._tries.due(way, self._clock())

    def _pay(self, ways: Iterable[str]) -> None:
        with self._lock:
            self._tries.pay(ways)
