"""An attached engine's frames, verb by verb: what it looks up, loads, stores and has finished."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvpool_agent.account import Account
from kvpool_agent.costs import Shares, Timing, timing_of
from kvpool_agent.engine_port.server import Port
from kvpool_agent.flows.canary import CanaryFlow
from kvpool_agent.flows.epochs import named, named_by, named_chains
from kvpool_agent.flows.finished import finish_request, told_misses
from kvpool_agent.flows.lookup import NO_LEASE, LookupFlow
from kvpool_agent.flows.plan_leases import PlanLeases
from kvpool_agent.flows.probe import ProbeFlow, Row
from kvpool_agent.flows.request import Request, lacking
from kvpool_agent.flows.store import HostPool, Offer, StoreFlow, Uncommitted
from kvpool_agent.policy.boundary import Blocks
from kvpool_agent.store.slab import LEASE_SECONDS, Slab, Slabs
from kvpool_client import wire
from kvpool_client.groups import GROUP_BYTES, Group, number_of, obstacle, reference
from kvpool_client.memory import copy
from kvpool_contract.tenants import MAX_CACHE_NAMESPACES

MAX_PROBE_BLOCKS = 8
NO_KEY = b""
OF_REQUESTS = ("lookup", "store", "finished")  # verbs; of the agent's own requests the probe alone stores


@dataclass(frozen=True)
class Flows:
    """What sessions hand their frames to. `requested`: somebody asks; `ended`: the session of this port is over."""

    slabs: Slabs
    lookup: LookupFlow
    store: StoreFlow
    account: Account
    probe: ProbeFlow
    canary: CanaryFlow
    requested: Callable[[], None]
    ended: Callable[[Port], None]


class EngineSession:
    """One attached engine's frames (engine_port.server.Session). Called by its connection's thread."""

    def __init__(
        self,
        flows: Flows,
        slab: Slab,
        pool: HostPool,
        hash_bytes: int,
        groups: Sequence[Group],
        port: Port,
    ) -> None:
        self._flows = flows
        self._slab, self._pool = slab, pool
        self._hash_bytes = hash_bytes
        self._groups, self._port = groups, port
        self._uncommitted = Uncommitted()
        self._plan_leases = PlanLeases()
        self._probe_rows: dict[int, list[Row]] = {}  # by job, not committed yet

    def frame(self, frame: wire.Frame) -> None:
        flows, header = self._flows, frame.header
        slab = flows.slabs.usable(str(header.get("namespace", "")))
        if frame.verb in OF_REQUESTS and not header.get("probe"):
            flows.requested()
        match frame.verb:
            case "lookup":
                again = bool(header.get("again"))
                self._on_lookup(slab, int(header["plan"]), header["lacks"], int(header["room"]), again, frame.tail)
            case "load":
                self._on_load(slab, int(header["call"]), frame.tail, int(header.get("done_plan", 0)))
            case "release":
                lease, number = divmod(int(header["lease"]), MAX_CACHE_NAMESPACES)
                flows.slabs.release(number, lease)
            case "store":
                self._on_store(slab, int(header["job"]), header["rows"], frame.tail, str(header.get("probe", "")))
            case "commit":
                self._on_commit(int(header["job"]))
            case "forget":
                self._on_forget(int(header["job"]))
            case "finished":
                timing = timing_of(header.get("timing"))
                shares = self._on_finished(slab, header, timing, frame.tail)
                told_misses(flows.account, header)
                if timing is not None:
                    flows.lookup.costs.served(timing, shares)
            case "sample":
                flows.canary.take(self._port, int(header["plan"]), frame.tail)
            case "canary":
                flows.canary.held(str(header["mark"]), int(header["held"]))
            case verb:
                raise wire.WireError(f"unknown verb {verb!r}")

    def ended(self) -> None:
        for job in list(self._probe_rows):
            self._on_forget(job)
        self._flows.store.end_session(self._uncommitted)
        self._plan_leases.release_all()
        self._pool.mapping.close()
        self._flows.ended(self._port)

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
            if slab is not None and (tokens := self._flows.canary.wants(self._port, plan, slab, request, hits)):
                told["sample"] = tokens
            self._port.send({"verb": "plan", "plan": plan, "hits": indexes, "seconds": seconds, **told})

        if slab is None:
            request = Request(blocks, chains, room, again)
            self._flows.account.miss("not_authorised", 0 if again else request.beyond(0))
            answer([], NO_LEASE)
        else:
            now, others = named_chains(slab, chains, self._hash_bytes)
            request = Request(blocks, now, room, again, others)
            self._flows.lookup.submit(slab, request, answer)

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
                return finish_request(self._flows.account, slab, self._groups, keys, header, timing)
        elif (asked := int(header["asked"])) >= 0:
            prompt = min(int(header["prompt"]), len(chains[reference(self._groups)]))
            self._flows.account.miss(reason, prompt - asked)
        return Shares()

    def _on_commit(self, job: int) -> None:
        """What an engine stored before the verdict on it is published, or forgotten, with the verdict."""
        if job in self._probe_rows:
            self._flows.probe.keep(self._slab, self._probe_rows.pop(job))
            return
        store = self._flows.store
        self._uncommitted.committed(job)

        def act(shares: bool) -> None:
            (store.commit if shares else store.forget)(self._uncommitted, job)

        self._flows.probe.when_settled(act)

    def _on_forget(self, job: int) -> None:
        rows = self._probe_rows.pop(job, None)
        if rows is None:
            self._flows.store.forget(self._uncommitted, job)
        else:
            self._slab.arena.give_back([row.slot for row in rows])

    def _on_store(self, slab: Slab | None, job: int, rows: list[int], tail: bytes, probe: str) -> None:
        items = wire.split(tail, 2 * (self._hash_bytes + GROUP_BYTES))
        if len(items) != len(rows) or not all(isinstance(r, int) and 0 <= r < self._pool.rows for r in rows):
            raise wire.WireError("a store's rows don't fit its blocks or the host pool")

        def reply(job: int, whole: bool, stored: int) -> None:
            self._port.send({"verb": "copied", "job": job, "whole": whole, "stored": stored})

        half = self._hash_bytes + GROUP_BYTES
        if self._flows.probe.expects(probe):
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
        self._flows.store.submit(slab, self._pool, self._uncommitted, job, offers, reply)

    def _take_probe(self, job: int, offers: list[Offer]) -> bool:
        """Copies the probe's rows; whether they are here."""
        pool = self._pool

        def copier(row: int) -> Callable[[int], None]:
            return lambda address: copy(address, pool.mapping.address + row * pool.row_bytes, pool.row_bytes)

        blocks = [(offer.key, copier(offer.row)) for offer in offers[:MAX_PROBE_BLOCKS]]
        taken = self._flows.probe.take(self._slab, blocks)
        if taken is None or len(self._probe_rows) >= MAX_PROBE_BLOCKS:
            self._slab.arena.give_back([row.slot for row in taken or ()])
            return False
        self._probe_rows[job] = taken
        return True
