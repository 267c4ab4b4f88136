"""Our secondary tier under vLLM's own tiering manager: where the engine's scheduler meets the agent.

Every method runs on the engine's scheduler thread and only touches memory: plans and jobs are kept here, frames go
out through the session's queue, bytes move on the copy thread. What the session's thread learns waits in a queue
until the step's first `get_finished_jobs`, so that plans change on one thread only. The constructor catches
everything: a tier that can't be built is inert, says why, and answers MISS.
"""

import collections
import logging
import time
import traceback
from collections.abc import Iterable, Sequence
from typing import Any

from vllm.v1.kv_offload.base import LookupResult, OffloadPolicy, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvpool_client import session, wire
from kvpool_client.engine_vllm import geometry
from kvpool_client.ledger import Ledger
from kvpool_client.loader import Loader
from kvpool_client.offers import Offers
from kvpool_client.plans import Answer, Plans

log = logging.getLogger("kvpool.client")

KEY_BYTES = geometry.KEY_BYTES
STORE_SECONDS = 5.0
_RESULTS = {Answer.HIT: LookupResult.HIT, Answer.MISS: LookupResult.MISS, Answer.RETRY: LookupResult.RETRY}


class KvpoolTier(SecondaryTierManager):
    """Named in the connector's configuration. `socket`: path of the engine port."""

    # what the engine's own metrics count our loads as
    cache_hit_source = CacheHitSource.P2P

    def __init__(
        self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, socket: str, **rest: Any
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, rest.get("backpressure_detector"))
        self._live: _Live | None = None
        self._failed: list[JobResult] = []  # jobs of an inert tier
        try:
            self._live = _Live(offloading_spec, primary_kv_view, socket)
        except Exception:
            log.exception("kvpool: the tier could not be built; the engine serves without the pool")
            session.report_bare(socket, "tier_failed", traceback.format_exc(limit=-1))

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        if self._live is None:
            return LookupResult.MISS
        return _RESULTS[self._live.lookup(key, req_context)]

    def submit_store(self, job_metadata: Any) -> None:
        if self._live is not None:
            self._live.submit_store(job_metadata)
        else:
            self._failed.append(JobResult(job_metadata.job_id, False))

    def submit_load(self, job_metadata: Any) -> None:
        if self._live is not None:
            self._live.submit_load(job_metadata)
        else:
            self._failed.append(JobResult(job_metadata.job_id, False))

    def get_finished_jobs(self) -> Iterable[JobResult]:
        if self._live is not None:
            return self._live.finished_jobs()
        failed, self._failed = self._failed, []
        return failed

    def has_pending_work(self) -> bool:
        return self._live is not None and self._live.ledger.pending

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        again = self._live is not None and self._live.new_request(req_context)
        return RequestOffloadingContext(OffloadPolicy.REQUEST_LEVEL if again else OffloadPolicy.CHUNK_LEVEL)

    def on_request_finished(self, req_context: Any) -> None:
        if self._live is not None:
            self._live.request_finished(req_context)

    def on_schedule_end(self, context: Any) -> None:
        if self._live is not None:
            self._live.schedule_end(context)

    def drain_jobs(self) -> None:
        if self._live is not None:
            self._live.drain()

    def shutdown(self) -> None:
        if self._live is not None:
            self._live.shutdown()


class _Live:
    """The tier's parts when everything is in place; also the session's listener."""

    def __init__(self, spec: Any, view: memoryview, socket: str) -> None:
        host_pool = geometry.host_pool(spec, view)
        self.ledger = Ledger()
        self._plans = Plans(load_deadline=0.0)
        self._offers = Offers()
        self._rows = host_pool.rows
        self._group_count = len(spec.config.groups)
        self._inbox: collections.deque[wire.Frame | None] = collections.deque()
        self._session = session.Session(socket, geometry.attach_header(spec, host_pool), [host_pool.descriptor], self)
        self._loader = Loader(self._session, self.ledger, host_pool.address, host_pool.row_bytes, KEY_BYTES)
        self._uncopied = 0
        self._session.start()
        self._loader.start()

    # -- the session's thread ------------------------------------------------------------------------

    def on_attached(self, attached: session.Attached) -> None:
        self._plans.load_deadline = attached.load_seconds + 0.5  # the agent's own deadline comes first
        self._offers.unconfirmed(time.monotonic())

    def on_event(self, frame: wire.Frame) -> None:
        if frame.verb == "copied":
            self._copied(frame.header)
        else:
            self._inbox.append(frame)

    def on_lost(self) -> None:
        self._inbox.append(None)
        self.ledger.fail_all()
        self._offers.unconfirmed(time.monotonic())

    def _copied(self, header: dict[str, Any]) -> None:
        """The agent has read a job's rows. Commit only while the job is open: afterwards the rows may be others'."""
        job, whole = int(header["job"]), bool(header["whole"])
        if self.ledger.close(job, success=whole):
            self._session.post({"verb": "commit", "job": job})
            now = time.monotonic()
            if whole and not header["stored"]:
                self._offers.confirmed(now)
            else:
                self._offers.unconfirmed(now)
        else:
            self._session.post({"verb": "forget", "job": job})

    # -- the scheduler's thread ----------------------------------------------------------------------

    def new_request(self, context: Any) -> bool:
        """Takes a request in; whether it shall offer what the engine holds already."""
        self._plans.begin(context.req_id, lambda: chain_of(context))
        return self._offers.offer_again(time.monotonic())

    def lookup(self, key: bytes, context: Any) -> Answer:
        if self._session.attached is None or self._group_count != 1:
            return self._plans.decline(context.req_id, key)
        room = 2 * (self.ledger.load_rows + self._plans.hits_this_step) < self._rows
        return self._plans.lookup(context.req_id, key, time.monotonic(), room)

    def submit_store(self, job: Any) -> None:
        now = time.monotonic()
        positions = sorted(
            (job.req_context.get_offload_key_position(key) or 0, key, int(row))
            for key, row in zip(job.keys, job.chunk_ids, strict=True)
        )
        parents = parents_of(chain_of(job.req_context))
        tail = b"".join(key + parents.get(key, bytes(KEY_BYTES)) for _, key, _ in positions)
        self.ledger.open(job.job_id, job.keys, is_load=False, deadline=now + STORE_SECONDS)
        header = {"verb": "store", "job": job.job_id, "rows": [row for _, _, row in positions]}
        if self._group_count != 1 or not self._session.post(header, tail):
            self.ledger.close(job.job_id, success=False)
            self._uncopied += 1
            self._offers.unconfirmed(now)

    def submit_load(self, job: Any) -> None:
        keys = list(job.keys)
        deadline = time.monotonic() + self._plans.load_deadline
        self.ledger.open(job.job_id, keys, is_load=True, deadline=deadline)
        blocks = list(zip(keys, (int(c) for c in job.chunk_ids), strict=True))
        self._loader.submit(job.job_id, blocks, self._plans.number_of(job.req_context.req_id))

    def finished_jobs(self) -> list[JobResult]:
        now = time.monotonic()
        while self._inbox:
            frame = self._inbox.popleft()
            if frame is None:
                self._plans.fail_open()
            elif frame.verb == "plan":
                self._plans.answer(int(frame.header["plan"]), frame.header["hits"])
        if self.ledger.expire(now):
            self._offers.unconfirmed(now)
        return [
            JobResult(r.job, r.success, r.done if r.is_load and not r.success else None) for r in self.ledger.take()
        ]

    def schedule_end(self, context: Any) -> None:
        for request in context.new_req_ids:
            self._plans.scheduled(request)
        for request in context.preempted_req_ids:
            self._plans.drop(request)
        for plan in self._plans.end_step():
            header = {"verb": "lookup", "plan": plan.number, "start": plan.start}
            if not self._session.post(header, b"".join(plan.chain)):
                self._plans.answer(plan.number, ())

    def request_finished(self, context: Any) -> None:
        chain = chain_of(context)
        summary = self._plans.finish(context.req_id)
        header = {
            "verb": "finished",
            "prompt": summary.prompt_blocks,
            "asked": summary.asked,
            "loaded": summary.hit_blocks,
        }
        self._session.post(header, b"".join(chain))

    def drain(self) -> None:
        self.ledger.drain()
        self._offers.unconfirmed(time.monotonic())

    def shutdown(self) -> None:
        self.ledger.fail_all()
        self._loader.close()
        self._session.close()


def chain_of(context: Any) -> Sequence[bytes]:
    """A request's keys in order. The engine records them privately; a test per engine version guards the field."""
    positions = context._offload_key_positions
    return sorted(positions, key=positions.__getitem__)


def parents_of(chain: Sequence[bytes]) -> dict[bytes, bytes]:
    """Each key's predecessor in its chain; the first has none."""
    return dict(zip(chain[1:], chain, strict=False))
