"""Our secondary tier under vLLM's own tiering manager: where the engine's scheduler meets the agent.

Every method runs on the engine's scheduler thread, where an exception ends the engine. So the constructor catches
everything, and so does every method: a tier that can't be built, or that has failed once, is inert from then on. It
answers MISS, ends every job as failed, and has told the agent why.
"""

import logging
import traceback
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from vllm.v1.kv_offload.base import LookupResult, OffloadPolicy, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvpool_client import session
from kvpool_client.engine_vllm import adapters, epoch, geometry
from kvpool_client.engine_vllm.requests import MARK_FIELD
from kvpool_client.plans import Answer
from kvpool_client.samples import Samples
from kvpool_client.scheduler_side import SchedulerSide
from kvpool_client.timing import Timings

log = logging.getLogger("kvpool.client")

_RESULTS = {Answer.HIT: LookupResult.HIT, Answer.MISS: LookupResult.MISS, Answer.RETRY: LookupResult.RETRY}
T = TypeVar("T")


class KvpoolTier(SecondaryTierManager):
    """Named in the connector's configuration. `socket`: path of the engine port."""

    # what the engine's own metrics count our loads as
    cache_hit_source = CacheHitSource.P2P

    def __init__(
        self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, socket: str, **rest: Any
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, rest.get("backpressure_detector"))
        self._socket = socket
        self._side: SchedulerSide | None = None
        self._failed_jobs: list[int] = []  # of an inert tier, to be reported
        self._header: dict[str, Any] = {}
        side: SchedulerSide | None = None
        try:
            pool = geometry.host_pool(offloading_spec, primary_kv_view)
            header = geometry.attach_header(offloading_spec, pool)
            adapters.install()
            epoch.follow(str(offloading_spec.config.engine_id), self)
            self._header = header
            mark = str(offloading_spec.config.extra_config.get(MARK_FIELD, ""))
            side = SchedulerSide(socket, header, pool, geometry.groups_of(offloading_spec), mark=mark)
            side.start()
            self._side = side
        except Exception:  # noqa: BLE001 - the engine must start; the reason goes to the agent
            self._fail(side)

    def _fail(self, side: SchedulerSide | None) -> None:
        """side: what there is of it; to the agent this engine is attached no more."""
        log.exception("kvpool: the tier has failed; the engine serves without the pool from now on")
        if side is not None:
            side.leave()
        session.report_bare(self._socket, "tier_failed", traceback.format_exc(limit=-2))

    def _guarded(self, call: Callable[[SchedulerSide], T], otherwise: T) -> T:
        """What `call` returns; `otherwise` for an inert tier, and for one that this call has made so."""
        side = self._side
        if side is None:
            return otherwise
        try:
            return call(side)
        except Exception:  # noqa: BLE001 - see the module's docstring
            self._side = None
            # copies into rows must have ended before their jobs are reported; they are bounded by their leases
            side.ledger.drain()
            self._failed_jobs += [result.job for result in side.ledger.take()]
            self._fail(side)
            return otherwise

    @property
    def timings(self) -> Timings | None:
        """Where the connector tells when requests begin and have their first token."""
        return self._side.timings if self._side is not None else None

    @property
    def samples(self) -> Samples | None:
        """Where the connector shows the prompts of requests that end."""
        return self._side.samples if self._side is not None else None

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        return _RESULTS[self._guarded(lambda side: side.lookup(key, req_context), Answer.MISS)]

    def submit_store(self, job_metadata: Any) -> None:
        self._submit(job_metadata.job_id, lambda side: side.submit_store(job_metadata))

    def submit_load(self, job_metadata: Any) -> None:
        self._submit(job_metadata.job_id, lambda side: side.submit_load(job_metadata))

    def _submit(self, job: int, call: Callable[[SchedulerSide], None]) -> None:
        inert_before = self._side is None
        self._guarded(call, None)
        if self._side is None and (inert_before or job not in self._failed_jobs):
            self._failed_jobs.append(job)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        ended: list[JobResult] = self._guarded(
            lambda side: [
                JobResult(r.job, r.success, r.done if r.is_load and not r.success else None)
                for r in side.finished_jobs()
            ],
            [],
        )
        failed, self._failed_jobs = self._failed_jobs, []
        return [*ended, *(JobResult(job, False) for job in failed)]

    def has_pending_work(self) -> bool:
        return bool(self._failed_jobs) or self._guarded(lambda side: side.ledger.pending, False)

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        again = self._guarded(lambda side: side.new_request(req_context), False)
        return RequestOffloadingContext(OffloadPolicy.REQUEST_LEVEL if again else OffloadPolicy.CHUNK_LEVEL)

    def on_request_finished(self, req_context: Any) -> None:
        self._guarded(lambda side: side.request_finished(req_context), None)

    def on_schedule_end(self, context: Any) -> None:
        self._guarded(lambda side: side.end_step(context.new_req_ids, context.preempted_req_ids), None)

    def new_epoch(self, epoch: str) -> None:
        """The engine's weights are others from now on (epoch.Tier)."""
        self._guarded(lambda side: side.renew(geometry.with_epoch(self._header, epoch)), None)

    def drain_jobs(self) -> None:
        self._guarded(lambda side: side.drain(), None)

    def shutdown(self) -> None:
        self._guarded(lambda side: side.shutdown(), None)
