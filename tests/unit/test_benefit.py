"""What sharing saves and costs: each term as it was measured, below zero where it is, and the pool's word on it."""

import dataclasses
import types
from typing import Any

import pytest

from kvpool_agent.costs import Costs, Shares, Timing
from kvpool_agent.policy.benefit import COLD, FALLBACK, LOCAL, REMOTE, TERMS, balance, kind_of
from kvpool_agent.policy.faded import HALF_SECONDS, Faded
from kvpool_agent.policy.interference import LOAD, QUIET, STORE, Interference
from kvpool_agent.store.arena import Arena
from kvpool_client.engine_vllm.prefills import STEPS_UNDER_WAY, Prefills
from kvpool_client.timing import Timings
from kvpool_contract.status import Benefit
from kvpool_operator.desired.benefit import ENOUGH, beneficial
from kvpool_operator.desired.events import pool_events


def step(*, requests: int, tokens: int) -> Any:
    """A step of the engine's scheduler."""
    return types.SimpleNamespace(
        scheduled_new_reqs=[],
        finished_req_ids=set(),
        num_scheduled_tokens=dict.fromkeys(range(requests), 1),
        total_num_scheduled_tokens=tokens,
    )


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def costs(clock: Clock) -> Costs:
    """Of an engine that computes a token in a millisecond."""
    made = Costs(clock)
    for _ in range(8):
        made.served(Timing(1.0, 1.0, 0, 1000))
    return made


def test_every_term_of_the_benefit_is_what_was_measured() -> None:
    clock = Clock()
    made = costs(clock)
    # 800 tokens loaded that another replica computed: 0.8 s saved, 0.3 s of loading
    made.served(Timing(0.5, 0.2, 800, 1000, waited=0.2, install=0.1, tried=True), Shares(0, 800, 4096, shared=True))
    # a plan that brought nothing
    made.served(Timing(1.25, 1.0, 0, 1000, waited=0.25, tried=True))
    # 100 tokens computed again that copies had pushed out
    made.served(Timing(1.0, 1.0, 0, 1000), Shares(again=100))
    # 100 steps of 10 ms, 20 beside a load of 14 ms, 20 beside a store of 11 ms
    made.served(Timing(1.0, 1.0, 0, 1000, steps=((3, "", 100, 1.0), (3, "load", 20, 0.28), (3, "store", 20, 0.22))))
    found = made.benefit()
    assert (found.loads, found.waited) == (1, 0.25)
    assert found.saved == pytest.approx(0.8, rel=0.05)
    assert found.loading == pytest.approx(0.3)
    assert found.displaced == pytest.approx(0.1, rel=0.05)
    assert (found.stalled, found.written) == (pytest.approx(0.08), pytest.approx(0.02))
    assert (found.load_slows, found.store_slows) == (pytest.approx(0.4), pytest.approx(0.1))
    assert found.gpu == pytest.approx(found.saved - 0.2, abs=0.02)
    assert found.waiting == pytest.approx(found.gpu - 0.55)
    kinds = made.outcomes()[""]
    assert {kind: quantiles.count for kind, quantiles in kinds.items()} == {COLD: 10, LOCAL: 0, REMOTE: 1, FALLBACK: 1}
    assert kinds[REMOTE].p50 == pytest.approx(0.5, rel=0.03)
    assert made.interference() == pytest.approx(0.4)


def test_what_costs_more_than_it_saves_is_below_zero() -> None:
    made = costs(Clock())
    for _ in range(3):
        made.served(Timing(3.0, 0.1, 900, 1000, waited=2.5, install=0.4, tried=True), Shares(0, 900, 1, shared=True))
    found = made.benefit()
    assert found.waiting == pytest.approx(3 * (0.9 - 2.9), rel=0.05)
    assert found.gpu == pytest.approx(2.7, rel=0.05)


def test_old_benefit_fades_and_all_terms_alike() -> None:
    clock = Clock()
    made = costs(clock)
    made.served(Timing(0.5, 0.2, 800, 1000, waited=0.2, install=0.1), Shares(0, 800, 4096, shared=True))
    before = made.benefit()
    clock.now += HALF_SECONDS
    after = made.benefit()
    assert after.saved == pytest.approx(before.saved / 2)
    assert after.waiting / after.saved == pytest.approx(before.waiting / before.saved)
    faded = Faded(10.0)
    faded.add(8.0, 0.0)
    faded.add(1.0, 10.0)
    assert faded.at(20.0) == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        ({"held": 0, "loaded": 0, "shared": False, "tried": False}, COLD),
        ({"held": 5, "loaded": 0, "shared": False, "tried": False}, LOCAL),
        ({"held": 0, "loaded": 5, "shared": False, "tried": True}, LOCAL),
        ({"held": 5, "loaded": 5, "shared": True, "tried": True}, REMOTE),
        ({"held": 5, "loaded": 0, "shared": False, "tried": True}, FALLBACK),
    ],
)
def test_a_request_is_one_of_four_kinds(request_: dict[str, Any], kind: str) -> None:
    assert kind_of(**request_) == kind


def test_cache_namespaces_are_told_apart() -> None:
    made = costs(Clock())
    made.served(Timing(9.0, 1.0, 0, 1000), Shares(namespace="acme"))
    assert {name: kinds[COLD].count for name, kinds in made.outcomes().items()} == {"": 8, "acme": 1}


def test_too_few_steps_are_not_compared_and_larger_ones_only_with_larger_ones() -> None:
    seen = Interference()
    assert seen.add(1, LOAD, 20, 2.0, 0.0) == 0.0  # nothing to compare with
    assert seen.add(1, QUIET, 15, 0.15, 0.0) == 0.0
    assert seen.part(LOAD, 0.0) == 0.0
    seen.add(1, QUIET, 15, 0.15, 0.0)
    assert seen.add(5, LOAD, 20, 9.0, 0.0) == 0.0
    assert seen.part(LOAD, 0.0) == pytest.approx(9.0)
    assert seen.add(1, STORE, 20, 0.1, 0.0) == pytest.approx(-0.1)  # faster than others: told as it is
    assert seen.part(STORE, 0.0) == 0.0


def test_steps_that_only_decode_are_timed_by_what_goes_on_beside_them() -> None:
    now = [""]
    timings = Timings(lambda: now[0])
    seen = Prefills(timings)
    for now[0], requests, tokens in (("", 3, 3), ("load", 3, 3), ("", 3, 40), ("store", 1, 1)):
        seen.scheduled(step(requests=requests, tokens=tokens))
        seen.results()
    told = timings.take_steps()
    assert sorted((size, what, n) for size, what, n, _ in told) == [(1, "store", 1), (2, "", 1), (2, "load", 1)]
    assert all(0 <= seconds < 60 for *_, seconds in told)
    assert timings.take_steps() == []
    seen.scheduled(step(requests=0, tokens=0))  # its results may come or not
    for _ in range(STEPS_UNDER_WAY + 2):
        seen.scheduled(step(requests=1, tokens=1))
        seen.results()
    assert [n for _, _, n, _ in timings.take_steps()] == [2]


def test_own_blocks_that_made_room_for_copies_are_counted_once_when_they_are_computed_again() -> None:
    arena = Arena(4, owned_percent=25)
    keys = [bytes([n]) * 16 for n in range(12)]

    def come(key: bytes, *, foreign: bool) -> None:
        (slot,) = arena.reserve(1, 0.0, copies=foreign)
        arena.commit(key, b"", slot, b"t" * 16, foreign=foreign)

    for key in keys[:4]:
        come(key, foreign=False)
    for key in keys[4:6]:
        come(key, foreign=True)
    gone = [key for key in keys[:4] if arena.held([key]) == [False]]
    assert len(gone) == 2
    assert (arena.computed_again(keys[:4]), arena.computed_again(keys[:4])) == (2, 0)
    come(keys[6], foreign=False)  # what makes room for own blocks is not counted
    assert arena.computed_again(keys) == 0


def status(**terms: float) -> Any:
    all_terms = {term: terms.get(term, 0.0) for term in TERMS}
    waiting, gpu = balance(all_terms)
    told = Benefit(waiting=waiting, gpu=gpu, loads=int(terms.get("loads", ENOUGH)), **all_terms)
    return dataclasses.make_dataclass("Status", ["benefit"])(told)


def test_the_pool_says_whether_sharing_pays_with_the_numbers_of_all_members_together() -> None:
    assert beneficial([]) is None
    assert beneficial([status(saved=9.0, loads=ENOUGH - 1)]) is None
    good = beneficial([status(saved=10.0, loading=2.0), status(saved=10.0, loading=3.0, stalled=1.0)])
    assert good is not None and good[:2] == (True, "Saves")
    assert "spared 70 % and the engines 95 %" in good[2]
    bad = beneficial([status(saved=10.0, loading=12.0, waited=3.0)])
    assert bad is not None and bad[:2] == (False, "CostsMoreThanItSaves")
    assert "spared -50 %" in bad[2] and "120 % loading, 30 % waiting for plans that brought nothing" in bad[2]


def test_an_event_is_told_when_sharing_stops_to_pay_and_when_it_pays_again_but_not_that_it_does() -> None:
    metadata = {"name": "p", "namespace": "n", "uid": "u"}

    def told(before: str, after: str) -> list[tuple[str, str]]:
        found = [
            {"conditions": [{"type": "Beneficial", "status": holds, "reason": f"r{holds}", "message": "m"}]}
            if holds
            else {}
            for holds in (before, after)
        ]
        return [(event.type, event.reason) for event in pool_events(metadata, found[0], found[1], [])]

    assert told("", "True") == []
    assert told("True", "False") == [("Warning", "rFalse")]
    assert told("", "False") == [("Warning", "rFalse")]
    assert told("False", "True") == [("Normal", "Beneficial")]
    assert told("True", "True") == []
