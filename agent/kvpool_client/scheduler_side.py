"""The client as the engine's scheduler thread sees it: plans, jobs, offers and frames, without any engine's types.

The adapter of an engine calls it from that one thread and only touches memory: plans and jobs are kept here, frames go
out through the session's queue, bytes move on the copy thread. What the session's thread learns waits in a queue until
the step's first `finished_jobs`, so that plans change on one thread only. Frames are read where they arrive, so that
nonsense ends the session and never reaches the scheduler. The adapter's requests and jobs are taken as they are, by
the attributes that vLLM gives them (`Context`, `Job`).
"""

import collections
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvpool_client import session, wire
from kvpool_client.front import APART, namespace_of
from kvpool_client.groups import FULL, Group, number_of, obstacle
from kvpool_client.heads import KnownHeads
from kvpool_client.ledger import Ledger, Result
from kvpool_client.loader import Loader
from kvpool_client.offers import Offers
from kvpool_client.plans import Answer, Plans
from kvpool_client.samples import Samples, canary_of
from kvpool_client.timing import Timings

STORE_SECONDS = 5.0
# in a request's kv_transfer_params: the agent's own request, by which this engine shows what it computes
PROBE = "kvpool_probe"


@dataclass(frozen=True)
class HostPool:
    """The engine's host pool: `rows` rows of `row_bytes` bytes from `address`; `descriptor` reads the same memory."""

    rows: int
    row_bytes: int
    address: int
    descriptor: int


class Context(Protocol):
    """A request, by the names that vLLM's ReqContext has. The positions are private there: a test per engine version
    guards the field."""

    req_id: str
    kv_transfer_params: dict[str, Any] | None
    _offload_key_positions: dict[bytes, int]


class Job(Protocol):
    """A transfer, by the names that vLLM's TransferJob has. `keys` and `chunk_ids` (rows) belong together by order,
    which is no order of the chain."""

    job_id: int
    keys: Collection[bytes]
    chunk_ids: Iterable[int]
    req_context: Context


class SchedulerSide:
    """One engine core's side of the session; also the session's listener."""

    def __init__(
        self,
        socket: str,
        attach_header: dict[str, Any],
        pool: HostPool,
        groups: Sequence[Group],
        *,
        store_seconds: float = STORE_SECONDS,
        mark: str = "",
    ) -> None:
        """groups: those of the model; where plans can't be made for them, every lookup is a miss and nothing is
        stored. store_seconds: how long a store may keep its rows. mark: under which the parameters of requests say
        their cache namespace, see kvpool_client.front."""
        self._store_seconds = store_seconds
        self._mark = mark
        self.ledger = Ledger()
        self.heads = KnownHeads()
        self._plans = Plans(groups, load_deadline=0.0, rule_out=self.heads.rule_out)
        self._offers = Offers()
        self.timings = Timings(self._beside)
        self.samples = Samples()
        self._groups = groups
        # promotions hold half of the host pool at most: the rest is for what the engine computes
        self._room = (pool.rows + 1) // 2
        self._shares = not obstacle(groups)
        self._load_requests: dict[int, str] = {}  # by job
        self._open: set[str] = set()  # requests that the engine has now
        self._outdated: set[str] = set()  # those of them that are older than the format, or apart from all others
        self._namespaces: dict[str, str] = {}  # of those that are not of the default one
        self._inbox: collections.deque[tuple[int, tuple[int, ...], float, bool, int] | None] = collections.deque()
        self.session = session.Session(socket, attach_header, [pool.descriptor], self)
        self._loader = Loader(self.session, self.ledger, pool.address, pool.row_bytes)

    def start(self) -> None:
        self.session.start()
        self._loader.start()

    # -- the session's thread ------------------------------------------------------------------------

    def on_attached(self, attached: session.Attached) -> None:
        self._wait_for_plans(attached.load_seconds)
        self._offers.unconfirmed(time.monotonic())

    def _wait_for_plans(self, load_seconds: float) -> None:
        self._plans.load_deadline = load_seconds + 0.5  # the agent's own deadline comes first

    def on_event(self, frame: wire.Frame) -> None:
        if frame.verb == "copied":
            self._copied(int(frame.header["job"]), bool(frame.header["whole"]), int(frame.header["stored"]))
        elif frame.verb == "plan":
            hits, seconds = tuple(int(i) for i in frame.header["hits"]), float(frame.header.get("seconds", -1.0))
            tried, sample = bool(frame.header.get("tried")), int(frame.header.get("sample", 0))
            self._inbox.append((int(frame.header["plan"]), hits, seconds, tried, sample))
        elif frame.verb == "heads":
            self.heads.take(frame.header, frame.tail)
        elif frame.verb == "limits":
            self._wait_for_plans(float(frame.header["load_seconds"]))

    def on_lost(self) -> None:
        self.heads.clear()
        self.samples.forget()
        self._inbox.append(None)
        self.ledger.fail_all()
        self._offers.unconfirmed(time.monotonic())

    def _copied(self, job: int, whole: bool, stored: int) -> None:
        """The agent has read a job's rows. Commit only while the job is open: afterwards the rows may be others'."""
        if not self.ledger.close(job, success=whole):
            self.session.post({"verb": "forget", "job": job})
            return
        self.session.post({"verb": "commit", "job": job})
        if whole and not stored:
            self._offers.confirmed(time.monotonic())
        else:
            self._offers.unconfirmed(time.monotonic())

    # -- the scheduler's thread ----------------------------------------------------------------------

    def new_request(self, context: Context) -> bool:
        """Takes a request in; whether it shall offer what the engine holds already. The agent's own ones are never
        loaded, and no requests of the account: the probe is stored, a canary is not."""
        self.session.resume()
        self._open.add(context.req_id)
        # first: what says that it is the agent's own may be anybody's
        mark = (context.kv_transfer_params or {}).get(self._mark) if self._mark else ""
        if mark == APART:
            self._outdated.add(context.req_id)
        elif mark:
            self._namespaces[context.req_id] = namespace_of(str(mark))
        if probe_of(context):
            return True
        self.timings.arrived(context.req_id, time.monotonic())
        if canary_of(context.kv_transfer_params):
            return False
        self._plans.begin(context.req_id, lambda: chains_of(context, self._groups))
        return self._offers.offer_again(time.monotonic())

    def lookup(self, key: bytes, context: Context) -> Answer:
        """The answer for one block."""
        if self.session.attached is None or not self._shares or context.req_id in self._outdated:
            return self._plans.decline(context.req_id, key)
        room = self._room - self.ledger.load_rows - self._plans.hits_this_step
        return self._plans.lookup(context.req_id, key, time.monotonic(), room)

    def submit_store(self, job: Job) -> None:
        """Offers rows to the agent; where it can't be asked, the job ends at once, uncopied."""
        now = time.monotonic()
        rows = {key: int(row) for key, row in zip(job.keys, job.chunk_ids, strict=True)}
        positions = job.req_context._offload_key_positions
        chains = chains_of(job.req_context, self._groups)
        known = {key for chain in chains for key in chain}
        keys = sorted((key for key in rows if key in known), key=positions.__getitem__)
        parents = self._parents(chains)
        tail = b"".join(key + parents.get(key, bytes(len(key))) for key in keys)
        self.ledger.open(job.job_id, rows, is_load=False, deadline=now + self._store_seconds)
        header = {"verb": "store", "job": job.job_id, "rows": [rows[key] for key in keys]}
        header |= self._namespace(job.req_context.req_id)
        if probe := probe_of(job.req_context):
            header["probe"] = probe
        outdated = job.req_context.req_id in self._outdated
        if not keys or canary_of(job.req_context.kv_transfer_params):
            self.ledger.close(job.job_id, success=False)
        elif outdated or not self._shares or not self.session.post(header, tail):
            self.ledger.close(job.job_id, success=False)
            self._offers.unconfirmed(now)

    def _namespace(self, request: str) -> dict[str, str]:
        """What a frame about this request's blocks says of its cache namespace."""
        name = self._namespaces.get(request)
        return {"namespace": name} if name else {}

    def _parents(self, chains: Sequence[Sequence[bytes]]) -> dict[bytes, bytes]:
        """The parent of each block that has one. A window's block and a state are worth something without those before
        them, so they are nobody's children."""
        return {
            key: parent
            for chain, group in zip(chains, self._groups, strict=True)
            if group.kind == FULL
            for key, parent in zip(chain[1:], chain, strict=False)
        }

    def submit_load(self, job: Job) -> None:
        """Queues a load of blocks that were answered HIT."""
        blocks = [(key, int(row)) for key, row in zip(job.keys, job.chunk_ids, strict=True)]
        deadline = time.monotonic() + self._plans.load_deadline
        self.ledger.open(job.job_id, (key for key, _ in blocks), is_load=True, deadline=deadline)
        request = job.req_context.req_id
        self._load_requests[job.job_id] = request
        self._plans.loading(request, (key for key, _ in blocks))
        self._loader.submit(job.job_id, blocks, self._plans.number_of(request), self._namespace(request))

    def finished_jobs(self) -> list[Result]:
        """Takes over what the session has learnt, and the results of the jobs that have ended."""
        now = time.monotonic()
        while self._inbox:
            plan = self._inbox.popleft()
            if plan is None:
                self._plans.fail_open()
            else:
                number, hits, seconds, tried, sample = plan
                if sample > 0:
                    self.samples.want(self._plans.request_of(number), number, sample)
                self._plans.answer(number, hits, seconds, tried, now)
        if self.ledger.expire(now):
            self._offers.unconfirmed(now)
        results = self.ledger.take()
        for result in results:
            if result.is_load:
                self._plans.loaded(self._load_requests.pop(result.job, ""), result.done)
        return results

    def end_step(self, new_requests: Iterable[str], preempted: Iterable[str]) -> None:
        """Ends a step of the scheduler: asks for the plans that it has opened."""
        for request in new_requests:
            self._plans.scheduled(request)
        for request in preempted:
            self._plans.drop(request)
            self.timings.drop(request)
        for plan in self._plans.end_step():
            header = {"verb": "lookup", "plan": plan.number, "lacks": plan.runs(), "room": self._room}
            if plan.again:
                header["again"] = True
            header |= self._namespace(plan.request)
            if not self.session.post(header, b"".join(plan.keys)):
                self._plans.unsent(plan.number)

    def request_finished(self, context: Context) -> None:
        """Tells the agent of a request's end."""
        outdated = context.req_id in self._outdated
        named = self._namespace(context.req_id)
        self._namespaces.pop(context.req_id, None)
        device = self.timings.take_device(context.req_id)
        self._open.discard(context.req_id)
        self._outdated.discard(context.req_id)
        plan = self._plans.number_of(context.req_id)
        summary = self._plans.finish(context.req_id)
        timing = self.timings.finish(context.req_id, summary)
        if mark := canary_of(context.kv_transfer_params):
            if self.samples.known:
                self.session.post({"verb": "canary", "mark": mark, "held": timing.get("held", -1)})
            return
        sample = self.samples.take(context.req_id, plan)
        if outdated or probe_of(context):
            return
        header = {
            "verb": "finished",
            "prompt": summary.prompt_blocks,
            "asked": summary.asked,
            "loaded": summary.loaded_blocks,
            "without_room": summary.blocks_without_room,
            "lost": summary.lost_blocks,
            "unknown": summary.unknown_blocks,
            "late": summary.late_blocks,
            # of groups that are never asked about the agent itself says why
            "unasked": summary.unasked_blocks if self._shares else 0,
            "unsent": summary.unsent_blocks,
            **({"device": device} if device >= 0 else {}),
            **({"timing": {**timing, "steps": self.timings.take_steps()}} if timing else {}),
            **named,
        }
        chains = chains_of(context, self._groups)
        self.session.post(header, b"".join(key for chain in chains for key in chain))
        if sample and summary.whole:
            self.session.post({"verb": "sample", "plan": plan}, sample)

    def renew(self, attach_header: dict[str, Any]) -> None:
        """From now on blocks mean something else: leaves the pool, and comes back with this header when a request
        comes. Requests that are open now neither load nor store any more."""
        self.session.pause(attach_header)
        self._outdated |= self._open
        self._inbox.clear()
        self._plans.fail_open()
        self.ledger.fail_all()

    def _beside(self) -> str:
        return "load" if self._plans.waiting or self.ledger.load_rows else "store" if self.ledger.pending else ""

    def drain(self) -> None:
        """Ends all open jobs and waits for the copies that run now; a store that was open is offered again."""
        self.ledger.drain()
        self._offers.unconfirmed(time.monotonic())

    def leave(self) -> None:
        """Leaves the pool for good, without waiting for anything: what is left here is nobody's any more."""
        self.session.leave()

    def shutdown(self) -> None:
        self.ledger.fail_all()
        self._loader.close()
        self.session.close()


def chains_of(context: Context, groups: Sequence[Group]) -> list[list[bytes]]:
    """A request's keys by group, each chain in the order of the prompt. What ends inside a block, as an engine may
    keep a state and the blocks beside it, is no block of the chain."""
    positions = context._offload_key_positions
    chains: dict[int, list[bytes]] = {group.number: [] for group in groups}
    sizes = {group.number: group.block_tokens for group in groups}
    for key in sorted(positions, key=positions.__getitem__):
        number = number_of(key)
        if not positions[key] % sizes[number]:
            chains[number].append(key)
    return list(chains.values())


def probe_of(context: Context) -> str:
    """The mark of the agent's probe; empty for every other request."""
    found = (context.kv_transfer_params or {}).get(PROBE)
    return found if isinstance(found, str) else ""
