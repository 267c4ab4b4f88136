"""What a request took to its first token, and what of that was kvpool's: told once, and only when it was seen whole."""

import types
from typing import Any

import pytest

from kvpool_agent.costs import DISK, Costs, Shares, Timing, timing_of
from kvpool_client.engine_vllm.prefills import Prefills
from kvpool_client.plan import Summary
from kvpool_client.timing import Timings


def summary(**plan: float) -> Summary:
    return Summary("a", 4, 0, 0, 0, 0, **plan)


def test_a_request_is_told_with_its_times_and_what_of_its_wait_was_not_the_agents() -> None:
    timings = Timings()
    timings.arrived("a", 10.0)
    timings.began("a", 96, 100, 12.5)
    timings.began("a", 0, 100, 13.0)  # its later steps
    timings.first_token("a", 13.5)
    timings.first_token("a", 14.0)
    told = timings.finish("a", summary(opened=10.25, settled=11.75, agent_seconds=1.0))
    assert told == {"first": 3.5, "prefill": 1.0, "waited": 1.5, "install": 1.25, "held": 96, "tokens": 100}
    assert timing_of(told) == Timing(3.5, 1.0, 96, 100, 1.5, 1.25)
    assert timings.finish("a", summary()) == {}


def test_one_that_was_preempted_or_never_had_a_token_is_not_told() -> None:
    timings = Timings()
    for name in ("a", "b"):
        timings.arrived(name, 1.0)
        timings.began(name, 0, 10, 2.0)
    timings.drop("a")
    timings.first_token("a", 3.0)
    assert (timings.finish("a", summary()), timings.finish("b", summary())) == ({}, {})


@pytest.mark.parametrize(
    "told",
    [
        None, "x", [], {}, {"first": 1, "prefill": 1, "held": 0}, {"first": "x", "prefill": 1, "held": 0, "tokens": 1},
        {"first": -1, "prefill": 1, "held": 0, "tokens": 1}, {"first": 1, "prefill": 1e9, "held": 0, "tokens": 1},
        {"first": float("nan"), "prefill": 1, "held": 0, "tokens": 1},
        {"first": 1, "prefill": 1, "held": 2, "tokens": 1},
        {"first": 1, "prefill": 1, "held": 0, "tokens": 1, "waited": float("inf")},
    ],
)  # fmt: skip
def test_nonsense_is_no_timing(told: Any) -> None:
    assert timing_of(told) is None


def request(name: str, tokens: int) -> Any:
    return types.SimpleNamespace(request_id=name, num_prompt_tokens=tokens, num_output_tokens=0, num_preemptions=0)


def step(*new: tuple[str, int], finished: tuple[str, ...] = ()) -> Any:
    reqs = [types.SimpleNamespace(req_id=name, num_computed_tokens=held) for name, held in new]
    return types.SimpleNamespace(
        scheduled_new_reqs=reqs,
        finished_req_ids=set(finished),
        num_scheduled_tokens={name: 1 for name, _ in new},
        total_num_scheduled_tokens=len(new),
    )


def test_a_first_token_is_seen_when_results_come_also_where_the_next_step_was_put_together_before() -> None:
    timings = Timings()
    seen = Prefills(timings)
    made = request("a", 100)
    timings.arrived("a", 0.0)
    seen.new(made)
    seen.scheduled(step(("a", 40)))
    seen.scheduled(step())  # asynchronous scheduling: the results of the first one are not there
    seen.results()
    assert timings.finish("a", summary()) == {}
    timings.arrived("b", 0.0)
    other = request("b", 50)
    seen.new(other)
    seen.scheduled(step(("b", 0)))
    other.num_output_tokens = 1
    seen.results()
    told = timings.finish("b", summary())
    assert (told["held"], told["tokens"]) == (0, 50)
    seen.scheduled(step(finished=("a",)))
    assert not seen._computing and not seen._waiting


def test_one_that_made_way_for_another_says_nothing_and_a_strange_engine_ends_the_looking() -> None:
    timings = Timings()
    seen = Prefills(timings)
    made = request("a", 100)
    timings.arrived("a", 0.0)
    seen.new(made)
    seen.scheduled(step(("a", 0)))
    made.num_preemptions = made.num_output_tokens = 1
    seen.results()
    assert timings.finish("a", summary()) == {}
    seen.new(types.SimpleNamespace(request_id="x"))
    seen.scheduled(step(("x", 0)))  # it has no prompt
    seen.new(request("b", 1))
    assert (seen._timings, seen._waiting) == (None, {})


def test_costs_are_kept_by_path_and_forgotten_with_it() -> None:
    costs = Costs(lambda: 1.0)
    costs.moved("a:1", 0.01, 1000, 0.1)
    costs.moved(DISK, 0.0, 1000, 0.01)
    assert (costs.remote("a:1", 1000), costs.remote("b:1", 10)) == (pytest.approx(0.11, rel=0.03), None)
    assert sorted(costs.snapshot().paths) == ["a:1", DISK]
    costs.forget("a:1")
    assert costs.remote("a:1", 1000) is None


def test_install_is_kept_by_size_and_a_larger_load_is_expected_to_take_longer() -> None:
    costs = Costs(lambda: 1.0)
    assert costs.install(1000) == 0.0
    costs.served(Timing(1.0, 0.5, 0, 10, 0.0, 0.01), Shares(0, 10, 1024))
    assert costs.install(1024) == pytest.approx(0.01, rel=0.03)
    assert costs.install(4096) == pytest.approx(0.04, rel=0.03)
    assert costs.install(100) == pytest.approx(0.01, rel=0.03)
