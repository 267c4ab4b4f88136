"""The plan of one request: what of its blocks lies, or can be brought, into the arena before the load deadline.

The longest boundary that is legal in every KV group, with what the engine holds, what is here, what lies on the disk,
and what members hold. The disk comes before members; they are asked for what it does not hold or does not bring.
Only what that boundary needs is brought: where a window's last blocks are nowhere, nothing moves for the sake of the
rest. The engine is answered when the bytes lie verified in the arena, or at the deadline with the longest boundary
that has come by then. Of what one member promised and did not serve, another that holds it is asked while there is
time.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from kvpool_agent.account import Account
from kvpool_agent.directory.locate import Holders, Locator
from kvpool_agent.flows.disk import DiskSource
from kvpool_agent.flows.epochs import in_either, name_anew
from kvpool_agent.flows.fetch import Fetcher, Wanted
from kvpool_agent.policy import sources
from kvpool_agent.policy.boundary import NO_LIMIT, Blocks, first_lacking, longest, wanted
from kvpool_agent.store.intact import intact
from kvpool_agent.store.slab import Slab
from kvpool_client.groups import FULL, reference

log = logging.getLogger("kvpool.lookup")

MAX_PLANS = 64
THREADS = 16
# from the plan's answer to the engine's load: a few of its steps, and a step may compute a long prompt
HOLD_SECONDS = 10.0
# a member that does not serve what it promised costs its blocks no more than the wait for the next one that has them
SOURCES_TRIED = 4
OWN_FAULTS = ("no_room", "just_restarted")  # with any source it would be the same

NO_LEASE = 0
# (hits, lease): for each group the indexes of the blocks that lie ready, kept by the lease
Answer = Callable[[Sequence[Sequence[int]], int], None]


@dataclass(frozen=True)
class Request:
    """`blocks` and `keys` by group: what the engine lacks, and the keys of those same blocks; `room`: how many blocks
    its host pool can take in; `again`: it was preempted after an earlier plan, which has counted its misses; `others`:
    the same keys under another epoch of the cache namespace's key, if there is one."""

    blocks: Sequence[Blocks]
    keys: Sequence[Sequence[bytes]]
    room: int
    again: bool = False
    others: Sequence[Sequence[bytes]] = ()

    def chosen(self, indexes: Sequence[Sequence[int]]) -> list[Wanted]:
        """The blocks at these indexes, by group. Those of a full-attention chain have a parent."""
        return [
            Wanted(keys[i], keys[i - 1] if i and blocks.group.kind == FULL else b"")
            for blocks, keys, chosen in zip(self.blocks, self.keys, indexes, strict=True)
            for i in chosen
        ]

    def starts(self, here: Sequence[Sequence[bool]]) -> list[int]:
        """By group, the first block that neither the engine nor the arena holds; the end where there is none."""
        return [
            next((i for i, lack in enumerate(blocks.lacks) if lack and not held[i]), len(blocks.lacks))
            for blocks, held in zip(self.blocks, here, strict=True)
        ]

    @property
    def is_full_attention(self) -> bool:
        return all(blocks.group.kind == FULL for blocks in self.blocks)

    def place_of(self, boundary: int) -> tuple[int, int]:
        """The reference group, and its block at the boundary."""
        number = reference([blocks.group for blocks in self.blocks])
        return number, boundary // self.blocks[number].group.block_tokens

    def beyond(self, boundary: int) -> int:
        """Blocks of the reference group that are computed when the request goes on at the boundary."""
        blocks = self.blocks[reference([blocks.group for blocks in self.blocks])]
        size = blocks.group.block_tokens
        return max(0, len(blocks.lacks) - max(-(-boundary // size), first_lacking(self.blocks) // size))


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
        self._account = account
        self._obstacle = obstacle
        self._disk = disk if disk is not None else DiskSource(None, account, fetcher.in_flight)
        self.load_seconds = load_seconds
        self.paused = False
        self._places = threading.BoundedSemaphore(MAX_PLANS)
        self._pool = ThreadPoolExecutor(THREADS, "kvpool-plan")

    def submit(self, slab: Slab, request: Request, answer: Answer) -> None:
        """Plans the request and answers."""
        reason = "paused" if self.paused else "" if self._places.acquire(blocking=False) else "busy"
        if reason:
            self._miss(request, reason, request.beyond(0))
            answer([()] * len(request.blocks), NO_LEASE)
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
        lease = NO_LEASE
        try:
            hits, lease = self.plan(slab, request, deadline)
        except Exception:
            log.exception("plan failed")
            self._miss(request, "unknown", request.beyond(0))
        finally:
            self._places.release()
            answer(hits, lease)

    def plan(self, slab: Slab, request: Request, deadline: float) -> tuple[list[list[int]], int]:
        """For each group the blocks that lie ready in the arena and that the engine lacks for the longest boundary, and
        the lease that keeps them there; counts the misses of the rest."""
        self._account.count("plans")
        obstacle = self._obstacle(deadline)
        if obstacle:
            self._miss(request, obstacle, request.beyond(0))
            return [[] for _ in request.blocks], NO_LEASE
        end = min(blocks.tokens for blocks in request.blocks)
        if request.others:
            self._from_other_epoch(slab, request, end, deadline)
        near = _either(_held(slab, request), [self._disk.held(slab, keys) for keys in request.keys])
        possible = reach = longest(request.blocks, near)
        planned = longest(request.blocks, near, request.room)
        # what is here for this boundary stays here while the rest comes
        ready = request.chosen(wanted(request.blocks, planned))
        kept, _ = slab.arena.lease([w.key for w in ready], time.monotonic(), self.load_seconds + HOLD_SECONDS)
        reason = rest_reason = ""
        fresh: set[bytes] = set()  # whose bytes were checked where they landed, for this plan
        try:
            found = Holders([{} for _ in request.blocks], "")
            if possible < end:
                found = self._locate(slab, request, near, deadline)
                anywhere = _anywhere(near, found)
                possible = longest(request.blocks, anywhere)
                reach = _reach_of_full_attention(request, anywhere)
                planned = longest(request.blocks, anywhere, request.room)
                rest_reason = "deadline" if time.monotonic() >= deadline else found.reason_at(*request.place_of(reach))
            reason = self._bring(slab, request, planned, found, deadline, fresh)
        finally:
            slab.arena.release(kept)
        came, hits, lease = self._verified(slab, request, fresh)
        planned = max(planned, came)  # more may have come than was known of
        possible = max(possible, planned)
        at = request.beyond
        self._miss(request, reason or "evicted", at(came) - at(planned))
        self._miss(request, "no_room", at(planned) - at(possible))
        self._miss(request, "window_missing", at(possible) - at(max(reach, possible)))
        self._miss(request, rest_reason or "evicted", at(max(reach, possible)))
        return hits, lease

    def _from_other_epoch(self, slab: Slab, request: Request, end: int, deadline: float) -> None:
        """What lies anywhere under the names of another epoch of the key lies here under those of now afterwards."""
        self._name_anew(slab, request)
        mixed = [in_either(slab, *both) for both in zip(request.keys, request.others, strict=True)]
        here = [slab.arena.held(keys) for keys in mixed]
        now = _either(here, [self._disk.held(slab, keys) for keys in request.keys])
        if longest(request.blocks, now) >= end:
            return
        asked = [
            [key if held else other for key, other, held in zip(keys, others, rows, strict=True)]
            for keys, others, rows in zip(mixed, request.others, now, strict=True)
        ]
        other = replace(request, keys=asked, others=())
        near = _either(now, [self._disk.held(slab, keys) for keys in asked])
        found = Holders([{} for _ in request.blocks], "")
        if longest(request.blocks, near) < end:
            found = self._locator.holders(
                slab.fingerprint, asked, deadline, other.starts(near), in_groups=False, slab=slab.id
            )  # fmt: skip
        boundary = longest(request.blocks, _anywhere(near, found), request.room)
        if boundary > longest(request.blocks, now, request.room):
            self._bring(slab, other, boundary, found, deadline, set())
            self._name_anew(slab, request)

    def _name_anew(self, slab: Slab, request: Request) -> None:
        for blocks, *both in zip(request.blocks, request.keys, request.others, strict=True):
            self._account.count("renamed_blocks", name_anew(slab, *both, linked=blocks.group.kind == FULL))

    def _bring(
        self, slab: Slab, request: Request, boundary: int, found: Holders, deadline: float, fresh: set[bytes]
    ) -> str:
        """Brings in what the boundary needs and is not here; the reason where not all of it came."""
        if not _missing(slab, request, boundary)[1]:
            return ""
        ready = request.chosen(wanted(request.blocks, boundary))
        kept, _ = slab.arena.lease([w.key for w in ready], time.monotonic(), self.load_seconds + HOLD_SECONDS)
        try:
            reason = ""
            indexes, missing = _missing(slab, request, boundary)
            here = self._disk.held(slab, [w.key for w in missing])
            if stored := [w for w, lies in zip(missing, here, strict=True) if lies]:
                reason, found = self._from_disk(slab, request, stored, found, deadline, fresh)
                indexes, missing = _missing(slab, request, boundary)
            held_by = [dict(rows) for rows in found.held]
            for _ in range(SOURCES_TRIED):
                failed = ""
                for address, blocks, others in _pieces(request, indexes, held_by):
                    until = _sooner(deadline, others)
                    failed = self._fetcher.fetch(slab, address, blocks, "demand", until, checked=fresh.add)
                    if failed:
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
        return self._locator.holders(
            slab.fingerprint, request.keys, deadline, request.starts(near), in_groups=in_groups, slab=slab.id
        )

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
            found = self._locate(slab, request, _held(slab, request), deadline)
        return reason, found

    def _verified(self, slab: Slab, request: Request, verified: set[bytes]) -> tuple[int, list[list[int]], int]:
        """The longest boundary for which all blocks are here now and match their tags, those blocks, and the lease that
        holds them until the engine's load. verified: keys of those that were found to match a moment ago."""
        while True:
            boundary = longest(request.blocks, _held(slab, request), request.room)
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


def _missing(slab: Slab, request: Request, boundary: int) -> tuple[list[list[int]], list[Wanted]]:
    """What the boundary needs and is not here: indexes by group, and the blocks."""
    indexes = [
        [i for i in chosen if not held[i]]
        for chosen, held in zip(wanted(request.blocks, boundary), _held(slab, request), strict=True)
    ]
    return indexes, request.chosen(indexes)


def _either(one: Sequence[Sequence[bool]], other: Sequence[Sequence[bool]]) -> list[list[bool]]:
    return [[a or b for a, b in zip(*rows, strict=True)] for rows in zip(one, other, strict=True)]


def _held(slab: Slab, request: Request) -> list[list[bool]]:
    return [slab.arena.held(keys) for keys in request.keys]


def _anywhere(here: Sequence[Sequence[bool]], found: Holders) -> list[list[bool]]:
    return [
        [any(flags) for flags in zip(own, *members.values(), strict=True)]
        for own, members in zip(here, found.held, strict=True)
    ]


def _reach_of_full_attention(request: Request, held: Sequence[Sequence[bool]]) -> int:
    """The longest boundary if windows asked for nothing."""
    full = [i for i, blocks in enumerate(request.blocks) if blocks.group.kind == FULL]
    return longest([request.blocks[i] for i in full], [held[i] for i in full], NO_LIMIT) if full else 0


def _pieces(
    request: Request, indexes: Sequence[Sequence[int]], held: Sequence[Mapping[str, Sequence[bool]]]
) -> list[tuple[str, list[Wanted], bool]]:
    """What to fetch from whom, in order, and whether others hold the same; neighbours at one member are one piece."""
    pieces: list[tuple[str, list[Wanted], bool]] = []
    for place, chosen in enumerate(indexes):
        for address, part in sources.share(held[place], chosen):
            blocks = request.chosen([part if i == place else () for i in range(len(indexes))])
            others = sum(row[part[0]] for row in held[place].values()) > 1
            if pieces and pieces[-1][0] == address:
                _, before, also = pieces.pop()
                blocks, others = [*before, *blocks], also and others
            pieces.append((address, blocks, others))
    return pieces


def _sooner(deadline: float, others: bool) -> float:
    """Where others hold the same blocks, a source has half of the time that is left: what it does not bring, one of
    them may."""
    now = time.monotonic()
    return now + (deadline - now) / 2 if others else deadline
