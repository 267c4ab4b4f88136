"""No exception leaves the tier: one that has failed once is inert, ends every job once, and has told the agent.

The engine's modules are stand-ins here: the rule is the tier's own. The engine suite runs it under the real ones.
"""

import enum
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kvpool_client import session
from kvpool_client.ledger import Ledger, Result
from kvpool_client.plans import Answer

LookupResult = enum.Enum("LookupResult", "MISS HIT HIT_PENDING RETRY")
OffloadPolicy = enum.Enum("OffloadPolicy", "CHUNK_LEVEL REQUEST_LEVEL")


@dataclass
class RequestOffloadingContext:
    policy: OffloadPolicy


@dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: Any = None


class SecondaryTierManager:
    def __init__(self, *_: Any) -> None:
        pass


@pytest.fixture
def tier_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    modules = {
        "vllm.v1.kv_offload.base": {
            "LookupResult": LookupResult,
            "OffloadPolicy": OffloadPolicy,
            "RequestOffloadingContext": RequestOffloadingContext,
        },
        "vllm.v1.kv_offload.tiering.base": {"JobResult": JobResult, "SecondaryTierManager": SecondaryTierManager},
        "vllm.v1.metrics.cache_hit_source": {"CacheHitSource": types.SimpleNamespace(P2P="p2p")},
    }
    for name, content in modules.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "kvpool_client.engine_vllm.tier", raising=False)
    yield importlib.import_module("kvpool_client.engine_vllm.tier")
    sys.modules.pop("kvpool_client.engine_vllm.tier", None)


class Side:
    """A scheduler side with a real ledger; `fails` names the method that raises."""

    def __init__(self, fails: str = "") -> None:
        self.ledger = Ledger()
        self.called: list[str] = []
        self._fails = fails

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.called.append(name)
            if name == self._fails:
                raise KeyError("a field that is not there")
            if name in ("submit_load", "submit_store"):
                (job,) = arguments
                self.ledger.open(job.job_id, [b"k"], is_load=name == "submit_load", deadline=1e9)
            return {"lookup": Answer.HIT, "new_request": True, "finished_jobs": self.ledger.take()}.get(name)

        return call


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(session, "report_bare", lambda path, reason, detail: found.append(reason))
    return found


SPEC = types.SimpleNamespace(config=types.SimpleNamespace(engine_id="e", extra_config={}))
HEADER = {"format": {"weights_epoch": ""}, "engine": "e"}


@pytest.fixture
def make(tier_module: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[Side], Any]:
    def made(side: Side) -> Any:
        monkeypatch.setattr(tier_module.geometry, "host_pool", lambda spec, view: None)
        monkeypatch.setattr(tier_module.geometry, "attach_header", lambda spec, pool: dict(HEADER))
        monkeypatch.setattr(tier_module.geometry, "groups_of", lambda spec: [])
        monkeypatch.setattr(tier_module, "SchedulerSide", lambda *_, **__: side)
        monkeypatch.setattr(tier_module.adapters, "install", lambda: None)
        monkeypatch.setattr(tier_module.epoch, "follow", lambda engine_id, tier: None)
        return tier_module.KvpoolTier(SPEC, memoryview(b""), "KvpoolTier", socket="/nowhere")

    return made


def job(number: int) -> Any:
    return types.SimpleNamespace(job_id=number)


CALLS: dict[str, Callable[[Any], Any]] = {
    "lookup": lambda tier: tier.lookup(b"k", None),
    "submit_store": lambda tier: tier.submit_store(job(7)),
    "submit_load": lambda tier: tier.submit_load(job(8)),
    "finished_jobs": lambda tier: list(tier.get_finished_jobs()),
    "new_request": lambda tier: tier.on_new_request(None),
    "request_finished": lambda tier: tier.on_request_finished(None),
    "end_step": lambda tier: tier.on_schedule_end(types.SimpleNamespace(new_req_ids=(), preempted_req_ids=())),
    "renew": lambda tier: tier.new_epoch("v:2"),
    "drain": lambda tier: tier.drain_jobs(),
    "shutdown": lambda tier: tier.shutdown(),
}


@pytest.mark.parametrize("fails", list(CALLS))
def test_a_method_that_fails_makes_the_tier_inert_and_every_job_ends_once(
    make: Callable[[Side], Any], reports: list[str], fails: str
) -> None:
    side = Side(fails)
    tier = make(side)
    tier.submit_load(job(1)) if fails != "submit_load" else None
    tier.submit_store(job(2)) if fails != "submit_store" else None
    CALLS[fails](tier)
    tier.submit_load(job(3))
    tier.submit_store(job(4))
    assert tier.has_pending_work()
    reported = [*(tier.get_finished_jobs() if fails != "finished_jobs" else []), *tier.get_finished_jobs()]
    expected = {1, 2, 3, 4} - ({1} if fails == "submit_load" else set()) - ({2} if fails == "submit_store" else set())
    expected |= {8} if fails == "submit_load" else {7} if fails == "submit_store" else set()
    if fails == "finished_jobs":  # the call that failed has reported what was open then
        expected -= {1, 2}
    assert sorted(result.job_id for result in reported) == sorted(expected)
    assert not any(result.success for result in reported)
    assert not tier.has_pending_work()
    assert list(tier.get_finished_jobs()) == []
    assert tier.lookup(b"k", None) is LookupResult.MISS
    assert tier.on_new_request(None).policy is OffloadPolicy.CHUNK_LEVEL
    assert reports == ["tier_failed"]
    assert side.called[-2:] == [fails, "leave"]  # attached is what the agent must not show


def test_a_tier_that_works_passes_on_what_its_side_says(make: Callable[[Side], Any], reports: list[str]) -> None:
    side = Side()
    tier = make(side)
    assert tier.lookup(b"k", None) is LookupResult.HIT
    assert tier.on_new_request(None).policy is OffloadPolicy.REQUEST_LEVEL
    tier.submit_load(job(1))
    assert tier.has_pending_work()
    side.finished_jobs = lambda: [Result(1, False, True, (b"k",)), Result(2, True, False, (b"a",))]
    assert tier.get_finished_jobs() == [JobResult(1, False, (b"k",)), JobResult(2, True, None)]
    assert reports == []


def test_a_tier_that_cannot_be_started_whole_leaves_nothing_attached(
    make: Callable[[Side], Any], reports: list[str]
) -> None:
    side = Side("start")  # as without a thread for the loads, when that of the session runs
    tier = make(side)
    assert (side.called, reports) == (["start", "leave"], ["tier_failed"])
    assert tier.lookup(b"k", None) is LookupResult.MISS


def test_a_tier_that_cannot_be_built_is_inert(
    make: Callable[[Side], Any], tier_module: Any, reports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise AttributeError("_scheduler_mmap")

    make(Side())
    monkeypatch.setattr(tier_module.geometry, "host_pool", broken)
    tier = tier_module.KvpoolTier(None, memoryview(b""), "KvpoolTier", socket="/nowhere")
    tier.submit_store(job(1))
    assert list(tier.get_finished_jobs()) == [JobResult(1, False)]
    assert tier.lookup(b"k", None) is LookupResult.MISS
    assert reports == ["tier_failed"]


def test_new_weights_are_another_format_and_another_engine_that_has_to_be_probed(make: Callable[[Side], Any]) -> None:
    side, renewed = Side(), []
    side.renew = renewed.append
    tier = make(side)
    tier.new_epoch("v:2")
    tier.new_epoch("v:3")
    assert [(header["format"], header["engine"]) for header in renewed] == [
        ({"weights_epoch": "v:2"}, "e v:2"),
        ({"weights_epoch": "v:3"}, "e v:3"),
    ]


def test_a_tier_that_does_not_hear_of_new_weights_is_inert(
    make: Callable[[Side], Any], tier_module: Any, reports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: Any) -> None:
        raise AttributeError("EngineCore has no attribute 'set_weight_version'")

    make(Side())
    monkeypatch.setattr(tier_module.epoch, "follow", unknown)
    tier = tier_module.KvpoolTier(SPEC, memoryview(b""), "KvpoolTier", socket="/nowhere")
    assert tier.lookup(b"k", None) is LookupResult.MISS
    assert reports == ["tier_failed"]
