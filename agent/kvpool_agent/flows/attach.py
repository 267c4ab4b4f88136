"""Attaching an engine: geometry checked, format named, the arena handed over; then its frames, verb by verb.

The engine port's handler. The host pool's descriptor is mapped read-only for the session's life; the arena's goes to
the engine as a descriptor that can't be mapped writable.
"""

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from kvpool_agent.account import Account
from kvpool_agent.costs import Shares, Timing, timing_of
from kvpool_agent.engine_port.server import Busy, Port, Refusal
from kvpool_agent.flows.canary import CanaryFlow
from kvpool_agent.flows.epochs import named, named_by, named_chains
from kvpool_agent.flows.finished import finish_request, told_misses
from kvpool_agent.flows.lookup import NO_LEASE, LookupFlow
from kvpool_agent.flows.plan_leases import PlanLeases
from kvpool_agent.flows.probe import ProbeFlow, Row
from kvpool_agent.flows.request import Request, lacking
from kvpool_agent.flows.store import HostPool, Offer, StoreFlow, Uncommitted
from kvpool_agent.policy.boundary import Blocks
from kvpool_agent.policy.difference import differences
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import LEASE_SECONDS, NoRoom, OtherFormat, Slab, Slabs
from kvpool_client import wire
from kvpool_client.groups import FULL, GROUP_BYTES, Group, from_header, number_of, obstacle, reference
from kvpool_client.memory import ReadOnlyMapping, copy
from kvpool_contract.names import format_fingerprint
from kvpool_contract.reasons import REASONS
from kvpool_contract.tenants import MAX_CACHE_NAMESPACES

log = logging.getLogger("kvpool.attach")

MAX_ROW_BYTES = 1 << 30
MAX_PROBE_BLOCKS = 8
NO_KEY = b""
OF_REQUESTS = ("lookup", "store", "finished")  # verbs; of the agent's own requests the probe alone stores


@dataclass(frozen=True)
class Hooks:
    """What the application wants to know: an attach with its slab, the reason of a refusal or bare start, that an
    engine of another format has come, from when to when a client can be told of heads, and that somebody asks."""

    attached: Callable[[Slab], None]
    bare: Callable[[str], None]
    other_format: Callable[[], None]
    began: Callable[[Port], None] = lambda _port: None
    ended: Callable[[Port], None] = lambda _port: None
    requested: Callable[[], None] = lambda: None


class EngineHandler:
    """Grants attaches and makes their sessions (engine_port.server.Handler)."""

    def __init__(
        self,
        slabs: Slabs,
        memory: ArenaMemory,
        lookup: LookupFlow,
        store: StoreFlow,
        account: Account,
        probe: ProbeFlow,
        canary: CanaryFlow,
        hooks: Hooks,
    ) -> None:
        self.slabs = slabs
        self._memory = memory
        self.lookup, self.store = lookup, store
        self.account, self.hooks = account, hooks
        self.probe, self.canary = probe, canary
        self._lock = threading.Lock()
        self._ports: set[Port] = set()
        self.sessions = 0
        self.attaches = 0
        self.in_groups = True  # whether blocks of the engine's model belong to directory groups: windows' don't

    def load_within(self, seconds: float) -> None:
        """Another load deadline from now on, for engines that are attached, too."""
        self.lookup.load_seconds = seconds
        with self._lock:
            ports = list(self._ports)

        def tell() -> None:
            for port in ports:
                port.send({"verb": "limits", "load_seconds": seconds})

        # an engine that stands still takes seconds, which the worker's own loop hasn't got
        with contextlib.suppress(RuntimeError):  # the container has no thread left; the old deadline is a bound, too
            threading.Thread(target=tell, name="kvpool-limits", daemon=True).start()

    def bare(self, reason: str, detail: str) -> None:
        word = reason if reason in REASONS else "unknown"
        log.warning("the engine starts without the pool: %s: %s", word, detail)
        self.account.event("bare", reason=word)
        self.hooks.bare(word)

    def attach(self, frame: wire.Frame, port: Port) -> "EngineSession":
        try:
            return self._attach(frame, port)
        except Refusal as refusal:
            log.warning("attach refused: %s %s", refusal.reason, refusal.detail)
            detail = {"detail": refusal.detail} if refusal.detail else {}
            self.account.event("attach_refused", reason=refusal.reason, **detail)
            self.hooks.bare(refusal.reason)
            raise

    def _attach(self, frame: wire.Frame, port: Port) -> "EngineSession":
        header = frame.header
        version = max(set(header["versions"]) & set(wire.VERSIONS), default=None)
        if version is None:
            raise Refusal("engine_port_version")
        fields, rows, row_bytes, hash_bytes = (header[name] for name in ("format", "rows", "row_bytes", "hash_bytes"))
        try:
            groups = from_header(header["groups"])
        except ValueError as error:
            log.warning("attach: %s", error)
            raise Refusal("geometry_refused") from None
        engine = str(header.get("engine", ""))
        if not (
            isinstance(fields, dict)
            and all(isinstance(n, int) and n > 0 for n in (rows, row_bytes, hash_bytes))
            and row_bytes <= MAX_ROW_BYTES
            and hash_bytes <= 256
            and len(frame.descriptors) == 1
        ):
            raise Refusal("geometry_refused")
        if self.probe.refuses(engine):
            raise Refusal("probe_mismatch")
        fingerprint = format_fingerprint(fields)  # all that can fail on what a client says comes before the mapping
        try:
            mapping = ReadOnlyMapping(frame.descriptors[0], rows * row_bytes)
        except OSError as error:
            log.warning("host pool: %s", error)
            raise Refusal("geometry_refused") from None
        try:
            slab = self.slabs.open(fingerprint, fields, row_bytes)
        except NoRoom:
            mapping.close()
            raise Refusal("arena_too_small") from None
        except OtherFormat:
            mapping.close()
            if self.sessions:
                held = self.slabs.current
                differing = differences(fields, held.fields if held is not None else {})
                raise Refusal("other_format", "; ".join(differing)) from None
            self._make_way()
        if slab.slot_bytes != row_bytes:
            mapping.close()
            if self.attaches:
                raise Refusal("geometry_refused")
            self._make_way()  # only a predecessor's engine had this format with other blocks
        reason, reader = obstacle(groups), None
        try:
            reader = self._memory.reader()
            if not reason:
                self.probe.attached(engine, slab, port.end, sum(group.whole for group in groups))
        except (OSError, RuntimeError) as error:  # no descriptor or no thread left: the client comes again
            log.error("attach: %s", error)
            mapping.close()
            if reader is not None:
                os.close(reader)
            raise Busy from None
        with self._lock:
            self.attaches += 1
            self.sessions += 1
            self.in_groups = all(group.kind == FULL for group in groups)
            self._ports.add(port)
        try:
            port.send(
                {
                    "verb": "attached",
                    "version": version,
                    "arena_bytes": self._memory.size,
                    "slot_bytes": slab.slot_bytes,
                    "lease_seconds": LEASE_SECONDS,
                    "load_seconds": self.lookup.load_seconds,
                },
                descriptors=(reader,),
            )
        finally:
            os.close(reader)
        if version >= wire.HEADS_VERSION:
            self.hooks.began(port)
        log.info("engine attached: format %s, %d rows of %d bytes", slab.fingerprint.hex(), rows, row_bytes)
        self.account.event("attached", format=slab.fingerprint.hex(), rows=rows, row_bytes=row_bytes)
        if self.slabs.asked_by_requests and not header.get("cache_namespaces"):
            self.account.event("one_cache_namespace")
        if reason:
            self.hooks.bare(reason)
        else:
            self.hooks.attached(slab)
        pool = HostPool(mapping, rows, row_bytes)
        return EngineSession(self, slab, pool, hash_bytes, groups, port)

    def _make_way(self) -> NoReturn:
        """Starts the worker anew for this engine; the next one must not recover what this one holds."""
        self.slabs.wipe()
        self.hooks.other_format()
        raise Busy

    def session_ended(self, port: Port) -> None:
        self.hooks.ended(port)
        with self._lock:
            self._ports.discard(port)
            self.sessions -= 1
        self.account.event("detached")


class EngineSession:
    """One attached engine's frames (engine_port.server.Session). Called by its connection's thread."""

    def __init__(
        self,
        handler: EngineHandler,
        slab: Slab,
        pool: HostPool,
        hash_bytes: int,
        groups: Sequence[Group],
        port: Port,
    ) -> None:
        self._handler = handler
        self._slab, self._pool = slab, pool
        self._hash_bytes = hash_bytes
        self._groups, self._port = groups, port
        self._uncommitted = Uncommitted()
        self._plan_leases = PlanLeases()
        self._probe_rows: dict[int, list[Row]] = {}  # by job, not committed yet

    def frame(self, frame: wire.Frame) -> None:
        handler, header = self._handler, frame.header
        slab = handler.slabs.usable(str(header.get("namespace", "")))
        if frame.verb in OF_REQUESTS and not header.get("probe"):
            handler.hooks.requested()
        match frame.verb:
            case "lookup":
                again = bool(header.get("again"))
                self._on_lookup(slab, int(header["plan"]), header["lacks"], int(header["room"]), again, frame.tail)
            case "load":
                self._on_load(slab, int(header["call"]), frame.tail, int(header.get("done_plan", 0)))
            case "release":
                lease, number = divmod(int(header["lease"]), MAX_CACHE_NAMESPACES)
                handler.slabs.release(number, lease)
            case "store":
                self._on_store(slab, int(header["job"]), header["rows"], frame.tail, str(header.get("probe", "")))
            case "commit":
                self._on_commit(int(header["job"]))
            case "forget":
                self._on_forget(int(header["job"]))
            case "finished":
                timing = timing_of(header.get("timing"))
                shares = self._on_finished(slab, header, timing, frame.tail)
                told_misses(handler.account, header)
                if timing is not None:
                    handler.lookup.costs.served(timing, shares)
            case "sample":
                handler.canary.take(self._port, int(header["plan"]), frame.tail)
            case "canary":
                handler.canary.held(str(header["mark"]), int(header["held"]))
            case verb:
                raise wire.WireError(f"unknown verb {verb!r}")

    def ended(self) -> None:
        for job in list(self._probe_rows):
            self._on_forget(job)
        self._handler.store.end_session(self._uncommitted)
        self._plan_leases.release_all()
        self._pool.mapping.close()
        self._handler.session_ended(self._port)

    def _by_group(self, tail: bytes) -> list[list[bytes]]:
        """The engine's keys in a tail, by group and in their order. Raises WireError for a key of no group."""
        chains: dict[int, list[bytes]] = {group.number: [] for group in self._groups}
        for key in wire.split(tail, self._hash_bytes + GROUP_BYTES):
            if number_of(key) not in chains:
                raise wire.WireError(f"a key of group {number_of(key)}, of which the attach said nothing")
            chains[number_of(key)].append(key)
        return list(chains.values())

    def _on_lookup(self, slab: Slab | None, plan: int, runs: Any, room: int, again: bool, tail: bytes) -> None:
        began, chains = time.monotonic(), self._by_group(tail)
        lacks = lacking(runs, sum(map(len, chains)))
        starts = [0, *itertools.accumulate(map(len, chains))]
        blocks = [
            Blocks(group, lacks[start : start + len(chain)])
            for group, chain, start in zip(self._groups, chains, starts, strict=False)
        ]

        def answer(hits: Sequence[Sequence[int]], lease: int, tried: bool = False) -> None:
            self._plan_leases.keep(plan, slab, lease)
            indexes = [start + i for start, chosen in zip(starts, hits, strict=False) for i in chosen]
            seconds = round(time.monotonic() - began, 6)
            told: dict[str, Any] = {"tried": True} if tried else {}
            if slab is not None and (tokens := self._handler.canary.wants(self._port, plan, slab, request, hits)):
                told["sample"] = tokens
            self._port.send({"verb": "plan", "plan": plan, "hits": indexes, "seconds": seconds, **told})

        if slab is None:
            request = Request(blocks, chains, room, again)
            self._handler.account.miss("not_authorised", 0 if again else request.beyond(0))
            answer([], NO_LEASE)
        else:
            now, others = named_chains(slab, chains, self._hash_bytes)
            request = Request(blocks, now, room, again, others)
            self._handler.lookup.submit(slab, request, answer)

    def _on_load(self, slab: Slab | None, call: int, tail: bytes, done_plan: int) -> None:
        keys = wire.split(tail, self._hash_bytes + GROUP_BYTES)
        if slab is None:
            self._port.send({"verb": "leased", "call": call, "lease": NO_LEASE, "slots": [-1] * len(keys)})
            return
        names = named(slab, keys, self._hash_bytes)
        lease, held = slab.arena.lease(names, time.monotonic(), LEASE_SECONDS)
        self._plan_leases.release(done_plan)
        slots = [block.slot + slab.first_slot if block is not None else -1 for block in held]
        number = lease * MAX_CACHE_NAMESPACES + slab.number
        self._port.send({"verb": "leased", "call": call, "lease": number, "slots": slots})

    def _on_finished(self, slab: Slab | None, header: dict[str, Any], timing: Timing | None, tail: bytes) -> Shares:
        chains = self._by_group(tail)
        if not (reason := obstacle(self._groups)):
            if slab is not None:
                keys = named_by(slab, chains, self._hash_bytes, slab.space.names[0])
                return finish_request(self._handler.account, slab, self._groups, keys, header, timing)
        elif (asked := int(header["asked"])) >= 0:
            prompt = min(int(header["prompt"]), len(chains[reference(self._groups)]))
            self._handler.account.miss(reason, prompt - asked)
        return Shares()

    def _on_commit(self, job: int) -> None:
        """What an engine stored before the verdict on it is published, or forgotten, with the verdict."""
        if job in self._probe_rows:
            self._handler.probe.keep(self._slab, self._probe_rows.pop(job))
            return
        store = self._handler.store
        self._uncommitted.committed(job)

        def act(shares: bool) -> None:
            (store.commit if shares else store.forget)(self._uncommitted, job)

        self._handler.probe.when_settled(act)

    def _on_forget(self, job: int) -> None:
        rows = self._probe_rows.pop(job, None)
        if rows is None:
            self._handler.store.forget(self._uncommitted, job)
        else:
            self._slab.arena.give_back([row.slot for row in rows])

    def _on_store(self, slab: Slab | None, job: int, rows: list[int], tail: bytes, probe: str) -> None:
        items = wire.split(tail, 2 * (self._hash_bytes + GROUP_BYTES))
        if len(items) != len(rows) or not all(isinstance(r, int) and 0 <= r < self._pool.rows for r in rows):
            raise wire.WireError("a store's rows don't fit its blocks or the host pool")

        def reply(job: int, whole: bool, stored: int) -> None:
            self._port.send({"verb": "copied", "job": job, "whole": whole, "stored": stored})

        half = self._hash_bytes + GROUP_BYTES
        if self._handler.probe.expects(probe):
            whole = {group.number for group in self._groups if group.whole}
            # named without a key: the prompt is nobody's, and an epoch of a key must not hide it
            chosen = [
                Offer(self._slab.key(item[:half], self._hash_bytes, NO_KEY), b"", row)
                for item, row in zip(items, rows, strict=True)
                if number_of(item[:half]) in whole
            ]
            reply(job, self._take_probe(job, chosen), len(items))
            return
        if slab is None:
            reply(job, False, 0)
            return
        keys = [slab.key(item[:half], self._hash_bytes) for item in items]
        parents = named(slab, [item[half:] for item in items], self._hash_bytes)
        offers = [
            Offer(key, parent if any(item[half:]) else b"", row)
            for item, key, parent, row in zip(items, keys, parents, rows, strict=True)
        ]
        self._handler.store.submit(slab, self._pool, self._uncommitted, job, offers, reply)

    def _take_probe(self, job: int, offers: list[Offer]) -> bool:
        """Copies the probe's rows; whether they are here."""
        pool = self._pool

        def copier(row: int) -> Callable[[int], None]:
            return lambda address: copy(address, pool.mapping.address + row * pool.row_bytes, pool.row_bytes)

        blocks = [(offer.key, copier(offer.row)) for offer in offers[:MAX_PROBE_BLOCKS]]
        taken = self._handler.probe.take(self._slab, blocks)
        if taken is None or len(self._probe_rows) >= MAX_PROBE_BLOCKS:
            self._slab.arena.give_back([row.slot for row in taken or ()])
            return False
        self._probe_rows[job] = taken
        return True
