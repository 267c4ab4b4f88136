"""Calibration under a real agent: what a new engine is asked before its pod is ready, and that nobody counts it."""

import threading
from collections.abc import Mapping
from typing import Any

from agent_pool import PROBING_ONCE, WAIT_SECONDS, AgentPool
from replica import wait_for
from standin_engine import Served, is_canary, prompt
from standin_model import BLOCK_TOKENS

from kvpool_agent.flows.calibrate import LENGTHS, ROUNDS
from kvpool_contract.status import Hits

LONG_SECONDS = 600.0  # that nobody waits for
CALIBRATED = {"loading": {"calibrationSeconds": LONG_SECONDS}}
PROBE = 1
PROMPTS = ROUNDS * len(LENGTHS)
BLOCKS = 4


def test_what_computing_costs_is_known_before_the_first_request_and_in_nobodys_counts(pool: AgentPool) -> None:
    a = pool.joined("a")
    a.engine.serve(prompt("p", BLOCKS))
    b = pool.node("b", **CALIBRATED).patched(PROBING_ONCE).start().until_sees(a).attach(probe=True)
    b.until("is told ready", lambda s: any(event.word == "ready" for event in s.events))
    status = b.until_state("Ready(warm)")
    assert (status.calibrated.ended_by, status.calibrated.prompts) == ("complete", PROMPTS)
    assert (status.costs.recompute.count, status.costs.recompute.longest) == (PROMPTS, LENGTHS[-1])
    assert b.engine.requests == PROBE + PROMPTS
    assert (status.hits, status.misses, status.first_token) == (Hits(), {}, {})
    assert (status.counters["calibration_prompts"], status.counters.get("plans", 0)) == (PROMPTS, 0)
    assert status.arena.blocks == BLOCKS, "the hot set, and nothing of the prompts"
    assert [event.word for event in status.events if event.word in ("calibrated", "ready")] == ["calibrated", "ready"]
    # what the engine counts itself counts them
    tokens = sum(tokens - tokens % BLOCK_TOKENS for tokens in LENGTHS) * ROUNDS
    assert b.engine.tokens["local_compute"] == tokens + PROBE * BLOCK_TOKENS
    assert b.engine.serve(prompt("p", BLOCKS)) == Served(pool=BLOCKS)


def test_a_request_ends_it_while_a_prompt_is_computed_and_the_pod_is_ready(pool: AgentPool) -> None:
    computing, go_on = threading.Event(), threading.Event()

    def hold_up(body: Mapping[str, Any]) -> None:
        if is_canary(body["kv_transfer_params"]):
            computing.set()
            go_on.wait(LONG_SECONDS)

    a = pool.node("a", **CALIBRATED).patched(PROBING_ONCE).start().attach(probe=True, before_completion=hold_up)
    wait_for("a prompt is computed", computing.is_set, WAIT_SECONDS, 0.005)
    status = a.status()
    # the engine asks for every prompt meanwhile: one that nobody knows ends it, too
    assert (status.state, status.directory.head_filter) == ("Warming", False)
    assert a.engine.serve(prompt("p", BLOCKS)) == Served(computed=BLOCKS)
    status = a.until_state("Ready(degraded)", "nothing_to_warm")
    assert (status.calibrated.ended_by, status.calibrated.prompts, status.costs.recompute.count) == ("traffic", 0, 0)
    a.until("unknown prompts are told by their heads again", lambda s: s.directory.head_filter)
    go_on.set()
    # what it computes after all is taken for nobody's
    wait_for("computed after all", lambda: a.engine.requests == PROBE + 2, WAIT_SECONDS, 0.005)
    assert a.engine.serve(prompt("p", BLOCKS)) == Served(host=BLOCKS)
    assert (a.status().calibrated, a.status().hits) == (status.calibrated, Hits(BLOCKS, BLOCKS, 0, {"host": BLOCKS}))


def test_an_engine_without_completions_is_named_and_its_pod_is_ready_and_shares(pool: AgentPool) -> None:
    a = pool.joined("a")
    b = pool.joined("b", **CALIBRATED)
    status = b.until_state("Ready(degraded)", "nothing_to_warm")
    assert (status.calibrated.ended_by, status.calibrated.detail) == ("no_answer", "the engine's port answered 404")
    b.loads_from(a, "p", BLOCKS)
