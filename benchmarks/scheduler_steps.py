"""Milliseconds that the connector takes of a scheduler's step, with many long prompts waiting; part of handoff.py.

Runs in the engine's environment, without a model: the connector that a joined engine has, vLLM's own scheduler's side
and tiering manager, under them kvpool's tier, and beside it a real agent that holds all blocks. What vLLM's scheduler
calls in a step is called for every waiting request. Between rounds the host pool is emptied, so that each round finds
everything in the agent again. Every second round times the calls into kvpool's tier as well; its totals are not used.
"""

import argparse
import contextlib
import gc
import json
import os
import signal
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.request import Request, RequestStatus

from kvpool_client.engine_vllm.connector import KvpoolConnector

ENGINE_BLOCK, DEVICE_BLOCKS = 16, 1024
PENDING_STEPS = 20
WAIT_SECONDS = 60.0
TIER_CALLS = ("lookup", "get_finished_jobs", "submit_load", "on_schedule_end", "on_request_finished", "on_new_request")


class Job:
    """A store, by the names that the client reads."""

    def __init__(self, number: int, keys: list[bytes], rows: range, context: Any) -> None:
        self.job_id, self.keys, self.chunk_ids, self.req_context = number, keys, rows, context


class Engine:
    """The scheduler's part of an engine, as far as the connector sees it."""

    def __init__(self, model: str, requests: int, prompt_tokens: int) -> None:
        arguments = EngineArgs(model=model, dtype="float32", max_model_len=2048, block_size=32, enforce_eager=True)
        config = arguments.create_engine_config()
        config.cache_config.block_size = ENGINE_BLOCK
        spec = FullAttentionSpec(block_size=ENGINE_BLOCK, num_kv_heads=1, head_size=16, dtype=torch.bfloat16)
        page = spec.page_size_bytes
        caches = KVCacheConfig(
            num_blocks=DEVICE_BLOCKS,
            kv_cache_tensors=[KVCacheTensor(DEVICE_BLOCKS * page, ["layer"], DEVICE_BLOCKS * page, page)],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        with set_current_vllm_config(config):
            self.connector = KvpoolConnector(config, KVConnectorRole.SCHEDULER, caches)
        self.tier = self.connector.scheduler.manager.secondary_tiers[0]
        self.side = self.tier._side
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(ENGINE_BLOCK, sha256)
        self._count, self._prompt_tokens = requests, prompt_tokens
        self._made = 0
        self.plans_answered = 0
        hear = self.side.on_event

        def on_event(frame: Any) -> None:
            hear(frame)
            self.plans_answered += frame.verb == "plan"

        self.side.on_event = on_event

    def requests(self) -> list[Request]:
        """The same prompts each time, as new requests."""
        self._made += 1
        return [
            Request(
                f"{self._made}-{i}",
                [(i * 7919 + k) % 30_000 for k in range(self._prompt_tokens + 1)],
                SamplingParams(max_tokens=1),
                None,
                block_hasher=self._hasher,
            )
            for i in range(self._count)
        ]

    def store_all(self) -> int:
        """Gives the agent every block of the prompts, from rows of the host pool; returns how many blocks."""
        until(lambda: self.side.session.attached is not None, "attach")
        requests, blocks = self.requests(), 0
        for number, request in enumerate(requests):
            self.connector.on_new_request(request)
            state = self.connector.scheduler._req_status[request.request_id]
            state.update_offload_keys()
            keys = list(state.group_states[0].offload_keys)
            self.side.submit_store(Job(10**6 + number, keys, range(blocks, blocks + len(keys)), state.req_context))
            results: list[Any] = []

            def stored(results: list[Any] = results) -> bool:
                results.extend(self.side.finished_jobs())
                return bool(results)

            until(stored, "store")
            if not results[0].success:
                raise SystemExit("the agent did not take the blocks")
            blocks += len(keys)
        self.finish(requests)
        return blocks

    def step(self, waiting: list[Request]) -> list[int | None]:
        """What the connector does in a step for requests that wait: tokens to load of each, None: ask again."""
        found = [self.connector.get_num_new_matched_tokens(request, 0)[0] for request in waiting]
        self.connector.scheduler.build_connector_meta(SchedulerOutput.make_empty())
        return found

    def finish(self, requests: list[Request]) -> None:
        for request in requests:
            request.status = RequestStatus.FINISHED_ABORTED  # nothing was computed, so nothing is stored
            self.connector.request_finished(request, ([],))
        output = SchedulerOutput.make_empty()
        output.finished_req_ids = {request.request_id for request in requests}
        self.connector.scheduler.build_connector_meta(output)


def until(holds: Callable[[], object], what: str) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {WAIT_SECONDS:.0f} s")
        time.sleep(0.001)


def probe_state(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(json.load(answer)["probe"]["state"])


class Watch:
    """Seconds of each state's steps, CPU seconds of the scheduler's thread, and seconds spent in kvpool's tier."""

    def __init__(self, engine: Engine) -> None:
        self._tier = engine.tier
        self.steps: dict[str, list[float]] = {}
        self.inside: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}
        self._inside = 0.0

    def time(self, state: str, call: Callable[[], Any], instrumented: bool) -> Any:
        self._inside = 0.0
        used, started = time.thread_time(), time.perf_counter()
        found = call()
        taken, used = time.perf_counter() - started, time.thread_time() - used
        if instrumented:
            self.inside.setdefault(state, []).append(self._inside)
        else:
            self.steps.setdefault(state, []).append(taken)
            self.cpu.setdefault(state, []).append(used)
        return found

    @contextlib.contextmanager
    def instrumented(self, wanted: bool) -> Iterator[None]:
        """Adds up the time of calls into the tier, where wanted."""
        for name in TIER_CALLS if wanted else ():
            setattr(self._tier, name, self._clocked(getattr(self._tier, name)))
        try:
            yield
        finally:
            for name in TIER_CALLS if wanted else ():
                delattr(self._tier, name)

    def _clocked(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def clocked(*args: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*args)
            finally:
                self._inside += time.perf_counter() - started

        return clocked


def one_round(engine: Engine, watch: Watch, worker: int, instrumented: bool) -> None:
    requests = engine.requests()
    gc.collect()  # of the prompts' million numbers, which an engine's tokeniser makes in another process
    tokens = (requests[0].num_tokens - 1) // ENGINE_BLOCK * ENGINE_BLOCK
    os.kill(worker, signal.SIGSTOP)  # the plans shall stay open while steps are timed
    try:
        watch.time("taken in", lambda: [engine.connector.on_new_request(r) for r in requests], instrumented)
        answered = engine.plans_answered
        watch.time("first scan, plans sent", lambda: engine.step(requests), instrumented)
        for _ in range(PENDING_STEPS):
            found = watch.time("plans pending (RETRY)", lambda: engine.step(requests), instrumented)
            if found != [None] * len(requests):
                raise SystemExit("a plan that nobody has answered was not pending")
    finally:
        os.kill(worker, signal.SIGCONT)
    until(lambda: engine.plans_answered == answered + len(requests), "plans")
    watch.time("plans answered, every block HIT", lambda: engine.step(requests), instrumented)
    found = [None]
    while None in found:
        used, started = time.thread_time(), time.perf_counter()
        found = engine.step(requests)
        taken, used = time.perf_counter() - started, time.thread_time() - used
        if not instrumented:
            state = "loads run" if None in found else "all loaded"
            watch.steps.setdefault(state, []).append(taken)
            watch.cpu.setdefault(state, []).append(used)
        time.sleep(0.001)
    if found != [tokens] * len(requests):
        raise SystemExit(f"{sum(t != tokens for t in found)} of {len(found)} requests did not load all")
    watch.time("requests finished", lambda: engine.finish(requests), instrumented)
    engine.connector.reset_cache()
    engine.step([])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--worker", type=int, required=True, help="process id of the agent's worker")
    parser.add_argument("--status", required=True, help="URL of the worker's status")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--prompt-tokens", type=int, required=True)
    options = parser.parse_args()
    engine = Engine(options.model, options.requests, options.prompt_tokens)
    blocks = engine.store_all()
    until(lambda: probe_state(options.status) == "not_run", "the probe's end")
    engine.connector.reset_cache()
    engine.step([])
    # as vLLM's core does once it has started: else every collection walks through all that was imported
    gc.collect()
    gc.freeze()
    watch, warm_up = Watch(engine), Watch(engine)
    for number in range(-1, 2 * options.rounds):
        instrumented = bool(number % 2)
        use = watch if number >= 0 else warm_up
        with use.instrumented(instrumented):
            one_round(engine, use, options.worker, instrumented)
    figures = {
        state: {
            "ms": 1e3 * statistics.median(seconds),
            "cpu": 1e3 * statistics.median(watch.cpu[state]),
            "least": 1e3 * min(seconds),
            "most": 1e3 * max(seconds),
            "steps": len(seconds),
            "inside": 1e3 * statistics.median(watch.inside[state]) if state in watch.inside else None,
        }
        for state, seconds in watch.steps.items()
    }
    json.dump({"blocks": blocks, "states": figures}, sys.stdout)
    sys.stdout.flush()
    engine.connector.shutdown()


if __name__ == "__main__":
    main()
