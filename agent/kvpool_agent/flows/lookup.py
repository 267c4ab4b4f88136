"""The plan of one request: what of its blocks lies, or can be brought, into the arena before the load deadline.

The longest boundary that is legal in every KV group, with what the engine holds, what is here, what lies on the disk,
what members hold, and what the external store holds, as far as loading it pays (kvpool_agent.flows.admit). The disk
comes before members, who are asked for what it does not hold or does not bring; the store comes last.
Only what that boundary needs is brought: where a window's last blocks or a state are nowhere, nothing moves for the
sake of the rest. The engine is answered when the bytes lie verified in the arena, or at the deadline with the longest
boundary that has come by then. Of what one member promised and did not serve, another that holds it is asked while
there is time.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from kvpool_agent.account import Account
from kvpool_agent.directory.locate import Holders, Locator
from kvpool_agent.flows.admit import Admission, Admitted
from kvpool_agent.flows.disk import DiskSource
from kvpool_agent.flows.epochs import in_either, name_anew
from kvpool_agent.flows.fetch import Fetcher, Wanted
from kvpool_agent.flows.request import (
    Request,
    anywhere,
    either,
    in_arena,
    not_in_arena,
    pieces_of,
    reach_of,
)
from kvpool_agent.policy.admission import NEVER
from kvpool_agent.policy.boundary import first_lacking, longest, wanted
from kvpool_agent.store.intact import intact
from kvpool_agent.store.slab import Slab
from kvpool_client.groups import FULL, WINDOW
from kvpool_contract.external import STORE

log = logging.getLogger("kvpool.lookup")

MAX_PLANS = 64
THREADS = 16
# from the plan's answer to the engine's load: a few of its steps, and a step may compute a long prompt
HOLD_SECONDS = 10.0
# a member that does not serve what it promised costs its blocks no more than the wait for the next one that has them
SOURCES_TRIED = 4
OWN_FAULTS = ("no_room", "just_restarted")  # with any source it would be the same

# what a source's faults are called where the source is the external store
STORE_FAILED, STORE_FAULTS = "store_failed", ("transfer_failed", "breaker_open")

LOADING_OFF, TOO_SLOW = "loading_off", "too_slow"
NEVER_PUBLISHED, EVICTED = "never_published", "evicted"

NO_LEASE = 0
# (hits, lease, tried): for each group the indexes of the blocks that lie ready, kept by the lease; whether some were to
# be brought
Answer = Callable[[Sequence[Sequence[int]], int, bool], None]


class LookupFlow:
    """Plans requests on threads of its own; above `MAX_PLANS` at a time a lookup is answered with a miss."""

    def __init__(
        self,
        locator: Locator,
        fetcher: Fetcher,
        account: Account,
        load_seconds: float,
        obstacle: Callable[[float], str] = lambda _deadline: "",
        disk: DiskSource | None = None,
    ) -> None:
        """obstacle: given the deadline, why the engine may load nothing; empty when it may."""
        self._locator = locator
        self._fetcher = fetcher
        self.costs = fetcher.costs
        self._account = account
        self._obstacle = obstacle
        self._disk = disk if disk is not None else DiskSource(None, account, fetcher.in_flight, fetcher.costs)
        self.admission = Admission(fetcher, self._disk, account, lambda work: self._pool.submit(work))
        self.load_seconds = load_seconds
        self.paused = False
        self._places = threading.BoundedSemaphore(MAX_PLANS)
        self._pool = ThreadPoolExecutor(THREADS, "kvpool-plan")

    def submit(self, slab: Slab, request: Request, answer: Answer) -> None:
        """Plans the request and answers."""
        reason = "paused" if self.paused else "" if self._places.acquire(blocking=False) else "busy"
        if reason:
            self._miss(request, reason, request.beyond(0))
            answer([()] * len(request.blocks), NO_LEASE, False)
            return
        deadline = time.monotonic() + self.load_seconds
        self._pool.submit(self._run, slab, request, deadline, answer)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _miss(self, request: Request, reason: str, blocks: int) -> None:
        if not request.again:
            self._account.miss(reason, blocks)

    def _run(self, slab: Slab, request: Request, deadline: float, answer: Answer) -> None:
        hits: Sequence[Sequence[int]] = [()] * len(request.blocks)
        lease, tried = NO_LEASE, False
        try:
            hits, lease, tried = self._plan(slab, request, deadline)
        except Exception:
            log.exception("plan failed")
            self._miss(request, "unknown", request.beyond(0))
        finally:
            self._places.release()
            answer(hits, lease, tried)

    def plan(self, slab: Slab, request: Request, deadline: float) -> tuple[list[list[int]], int]:
        """As `submit` answers, on this thread."""
        hits, lease, _ = self._plan(slab, request, deadline)
        return hits, lease

    def _plan(self, slab: Slab, request: Request, deadline: float) -> tuple[list[list[int]], int, bool]:
        """For each group the blocks that lie ready in the arena and that the engine lacks for the longest boundary, and
        the lease that keeps them there; counts the misses of the rest."""
        self._account.count("plans")
        obstacle = LOADING_OFF if self.admission.loading.mode == NEVER else self._obstacle(deadline)
        if obstacle:
            self._miss(request, obstacle, request.beyond(0))
            return [[] for _ in request.blocks], NO_LEASE, False
        end = min(blocks.tokens for blocks in request.blocks)
        if request.others:
            self._from_other_epoch(slab, request, end, deadline)
        near = either(in_arena(slab, request), [self._disk.held(slab, keys) for keys in request.keys])
        possible = reach = without_states = longest(request.blocks, near)
        # what is here for this boundary stays here while the rest comes
        ready = request.chosen(wanted(request.blocks, longest(request.blocks, near, request.room)))
        kept, _ = slab.arena.lease([w.key for w in ready], time.monotonic(), self.load_seconds + HOLD_SECONDS)
        reason = rest_reason = ""
        fresh: set[bytes] = set()  # whose bytes were checked where they landed, for this plan
        try:
            found = Holders([{} for _ in request.blocks], "")
            if possible < end and self.admission.asks(request):
                found = self._locate(slab, request, near, deadline)
                held = anywhere(near, found)
                possible = longest(request.blocks, held)
                reach = reach_of(request, held, FULL)
                without_states = reach_of(request, held, FULL, WINDOW)
                rest_reason = "deadline" if time.monotonic() >= deadline else found.reason_at(*request.place_of(reach))
            elif possible < end:
                rest_reason = TOO_SLOW
            admitted = self.admission.admit(slab, request, near, found, deadline)
            reason = self._bring(slab, request, admitted, fresh)
        finally:
            slab.arena.release(kept)
        came, hits, lease = self._verified(slab, request, fresh, admitted)
        planned = max(admitted.planned, came)  # more may have come than was known of
        possible = max(possible, planned)
        without_states = max(without_states, possible)
        reach = max(reach, without_states)
        if reach >= end and request.has_states:  # at the very end of a prompt no engine goes on from a state
            rest_reason = "state_missing"
        bounds = came, max(came, admitted.boundary), planned, possible, without_states, reach
        at_came, at_admitted, at_planned, at_possible, at_states, at_reach = map(request.beyond, bounds)
        let_go = _let_go(slab, request, found, at_reach) if rest_reason == NEVER_PUBLISHED else 0
        self._miss(request, reason or EVICTED, at_came - at_admitted)
        self._miss(request, TOO_SLOW, at_admitted - at_planned)
        self._miss(request, "no_room", at_planned - at_possible)
        self._miss(request, "state_missing", at_possible - at_states)
        self._miss(request, "window_missing", at_states - at_reach)
        self._miss(request, EVICTED, let_go)
        self._miss(request, rest_reason or EVICTED, at_reach - let_go)
        return hits, lease, admitted.boundary > first_lacking(request.blocks)

    def _from_other_epoch(self, slab: Slab, request: Request, end: int, deadline: float) -> None:
        """What lies anywhere under the names of another epoch of the key lies here under those of now afterwards."""
        self._name_anew(slab, request)
        mixed = [in_either(slab, *both) for both in zip(request.keys, request.others, strict=True)]
        here = [slab.arena.held(keys) for keys in mixed]
        now = either(here, [self._disk.held(slab, keys) for keys in request.keys])
        if longest(request.blocks, now) >= end:
            return
        asked = [
            [key if held else other for key, other, held in zip(keys, others, rows, strict=True)]
            for keys, others, rows in zip(mixed, request.others, now, strict=True)
        ]
        other = replace(request, keys=asked, others=())
        near = either(now, [self._disk.held(slab, keys) for keys in asked])
        found = Holders([{} for _ in request.blocks], "")
        if longest(request.blocks, near) < end:
            found = self._holders(slab, other, near, deadline, in_groups=False)
        boundary = longest(request.blocks, anywhere(near, found), request.room)
        if boundary > longest(request.blocks, now, request.room):
            self._bring(slab, other, Admitted(boundary, boundary, found, True, deadline), set())
            self._name_anew(slab, request)

    def _name_anew(self, slab: Slab, request: Request) -> None:
        for blocks, *both in zip(request.blocks, request.keys, request.others, strict=True):
            self._account.count("renamed_blocks", name_anew(slab, *both, linked=blocks.group.kind == FULL))

    def _bring(self, slab: Slab, request: Request, admitted: Admitted, fresh: set[bytes]) -> str:
        """Brings in what the boundary needs and is not here; the reason where not all of it came."""
        boundary, found, deadline = admitted.boundary, admitted.found, admitted.deadline
        if not not_in_arena(slab, request, boundary)[1]:
            return ""
        ready = request.chosen(wanted(request.blocks, boundary))
        kept, _ = slab.arena.lease([w.key for w in ready], time.monotonic(), self.load_seconds + HOLD_SECONDS)
        try:
            reason = ""
            indexes, missing = not_in_arena(slab, request, boundary)
            here = self._disk.held(slab, [w.key for w in missing]) if admitted.disk else [False] * len(missing)
            if stored := [w for w, lies in zip(missing, here, strict=True) if lies]:
                reason, found = self._from_disk(slab, request, stored, found, deadline, fresh)
                indexes, missing = not_in_arena(slab, request, boundary)
            held_by = [dict(rows) for rows in found.held]
            for _ in range(SOURCES_TRIED):
                failed = ""
                for address, blocks, others in pieces_of(request, indexes, held_by):
                    until = _sooner(deadline, others)
                    failed = self._fetcher.fetch(
                        slab, address, blocks, "demand", until, checked=fresh.add, soft=admitted.soft
                    )
                    if failed:
                        failed = STORE_FAILED if address == STORE and failed in STORE_FAULTS else failed
                        for rows in held_by:
                            rows.pop(address, None)
                        break
                reason = failed or reason
                if not failed or failed in OWN_FAULTS or time.monotonic() >= deadline:
                    break
            self._fetcher.in_flight.wait_for([w.key for w in missing], deadline)
            return "deadline" if time.monotonic() >= deadline else reason
        finally:
            slab.arena.release(kept)

    def _locate(self, slab: Slab, request: Request, near: Sequence[Sequence[bool]], deadline: float) -> Holders:
        # homes keep the directory of the default cache namespace alone; of others its members are asked
        in_groups = request.is_full_attention and not slab.number
        began = time.monotonic()
        found = self._holders(slab, request, near, deadline, in_groups=in_groups)
        self.costs.looked_up(time.monotonic() - began)
        return found

    def _holders(
        self, slab: Slab, request: Request, near: Sequence[Sequence[bool]], deadline: float, *, in_groups: bool
    ) -> Holders:
        """Of members, and of the external store what none of them holds."""
        found = self._locator.holders(
            slab.fingerprint, request.keys, deadline, request.starts(near), in_groups=in_groups, slab=slab.id
        )
        lacks = [blocks.lacks for blocks in request.blocks]
        return self._fetcher.external.among(slab, request.keys, lacks, near, found, deadline)

    def _from_disk(
        self,
        slab: Slab,
        request: Request,
        stored: Sequence[Wanted],
        found: Holders,
        deadline: float,
        fresh: set[bytes],
    ) -> tuple[str, Holders]:
        """Loads what lies on the disk; the reason where not all of that came, and who holds what did not. Members have
        as much time as the disk."""
        reason = self._disk.load(slab, stored, _sooner(deadline, True), fresh.add)
        if reason and reason not in OWN_FAULTS and time.monotonic() < deadline:
            found = self._locate(slab, request, in_arena(slab, request), deadline)
        return reason, found

    def _verified(
        self, slab: Slab, request: Request, verified: set[bytes], admitted: Admitted
    ) -> tuple[int, list[list[int]], int]:
        """The longest boundary for which all blocks are here now and match their tags, those blocks, and the lease that
        holds them until the engine's load; not beyond what was admitted. verified: keys of those that were found to
        match a moment ago."""
        while True:
            here = in_arena(slab, request)
            if admitted.boundary < admitted.planned:
                here = request.up_to(admitted.boundary, here)
            boundary = longest(request.blocks, here, request.room)
            hits = wanted(request.blocks, boundary)
            keys = [w.key for w in request.chosen(hits)]
            lease, held = slab.arena.lease(keys, time.monotonic(), HOLD_SECONDS)
            sound = True
            for block in held:
                if block is None:  # evicted since it was found
                    sound = False
                elif block.key in verified or intact(slab, block, self._account, log):
                    verified.add(block.key)
                else:
                    sound = False
            if sound:
                return boundary, hits, lease
            slab.arena.release(lease)


def _let_go(slab: Slab, request: Request, found: Holders, blocks: int) -> int:
    """How many of the last so many blocks of the prompt somebody has held and let go. One that is still held somewhere,
    behind a gap, is out of reach for the same reason as the one before it."""
    number = request.place_of(0)[0]
    keys = request.keys[number]
    start = len(keys) - blocks
    elsewhere = found.gone[number] if found.gone else frozenset()
    gone = [here or i in elsewhere for i, here in enumerate(slab.arena.made_room(keys[start:]), start)]
    held = anywhere(in_arena(slab, request), found)[number][start:]
    count, last = 0, False
    for was, still in zip(gone, held, strict=True):
        last = last if still else was
        count += last
    return count


def _sooner(deadline: float, others: bool) -> float:
    """Where others hold the same blocks, a source has half of the time that is left: what it does not bring, one of
    them may."""
    now = time.monotonic()
    return now + (deadline - now) / 2 if others else deadline
