"""One plan per request: RETRY once a step and group, HIT once a block, MISS for everything else."""

import pytest

from kvpool_client.groups import FULL, STATE, WINDOW, Group
from kvpool_client.plans import Answer, Plans, Summary

HIT, MISS, RETRY = Answer.HIT, Answer.MISS, Answer.RETRY
CHAIN = [b"k%d" % i + bytes(4) for i in range(4)]
K0, K1, K2, K3 = CHAIN
WINDOWS = [b"w%d" % i + (7).to_bytes(4, "big") for i in range(4)]
ROOM = 100


@pytest.fixture
def plans() -> Plans:
    made = Plans([Group(0, FULL, 0, 4)], load_deadline=5.0)
    made.begin("r", lambda: [CHAIN])
    return made


@pytest.fixture
def hybrid() -> Plans:
    """Full attention, and a window of two blocks."""
    made = Plans([Group(0, FULL, 0, 4), Group(7, WINDOW, 8, 4)], load_deadline=5.0)
    made.begin("r", lambda: [CHAIN, WINDOWS])
    return made


def test_a_plan_is_told_of_no_state_beyond_the_first_that_was_asked_for() -> None:
    plans = Plans([Group(7, STATE, 1, 4), Group(0, FULL, 0, 4)], load_deadline=5.0)
    states = WINDOWS
    plans.begin("r", lambda: [states, CHAIN])
    assert [ask(plans, key) for key in (K1, K2, K3)] == [RETRY, MISS, MISS]
    # the prompt ends with block 3, so the engine asks for the state of block 2 first
    assert [ask(plans, key) for key in (states[2], states[1])] == [RETRY, MISS]
    (plan,) = plans.end_step()
    assert (plan.keys, plan.runs()) == ([*states[:3], *CHAIN], [[1, 3], [4, 7]])
    plans.answer(plan.number, [2, 4, 5])
    assert [ask(plans, key) for key in (K1, K2, K3, states[3], states[2])] == [HIT, HIT, MISS, MISS, HIT]
    plans.loading("r", [K1, K2, states[2]])
    plans.loaded("r", [K1, K2, states[2]])
    plans.end_step()
    plans.scheduled("r")
    assert plans.finish("r") == Summary("r", 4, 1, 2, 0, 0)


def ask(plans: Plans, key: bytes, now: float = 0.0, room: int = ROOM) -> Answer:
    return plans.lookup("r", key, now, room)


def test_a_step_answers_retry_once_and_then_miss(plans: Plans) -> None:
    assert [ask(plans, key) for key in CHAIN] == [RETRY, MISS, MISS, MISS]
    (plan,) = plans.end_step()
    assert (plan.keys, plan.runs()) == (CHAIN, [[0, 4]])
    assert [ask(plans, key) for key in CHAIN[:2]] == [RETRY, MISS]
    assert plans.end_step() == []


def test_a_hit_is_given_once_and_asked_again_it_is_a_miss(plans: Plans) -> None:
    ask(plans, K1)
    (plan,) = plans.end_step()
    assert plan.runs() == [[1, 4]]
    plans.answer(plan.number, [1, 2])
    assert [ask(plans, key) for key in (K1, K2, K3)] == [HIT, HIT, MISS]
    assert plans.hits_this_step == 2
    assert [ask(plans, key) for key in (K1, K2)] == [MISS, MISS]
    plans.loading("r", [K1, K2])
    plans.end_step()
    assert plans.hits_this_step == 0
    plans.loaded("r", [K1])  # of the two that lay ready one has come
    assert plans.finish("r") == Summary("r", 4, 1, 0, 0, 2)


def test_what_is_asked_for_again_was_lost_and_so_was_what_comes_after_it(plans: Plans) -> None:
    ask(plans, K0)
    (plan,) = plans.end_step()
    plans.answer(plan.number, [0, 1, 2, 3])
    assert [ask(plans, key) for key in CHAIN] == [HIT] * 4
    plans.loading("r", CHAIN)
    plans.loaded("r", CHAIN)
    assert [ask(plans, key) for key in (K2, K3)] == [MISS] * 2
    assert plans.finish("r") == Summary("r", 4, 0, 2, 0, 2)


def test_a_plan_says_nothing_of_blocks_that_the_engine_holds_or_beyond_its_chain(plans: Plans) -> None:
    ask(plans, K2)
    (plan,) = plans.end_step()
    plans.answer(plan.number, [-1, 0, 1, 2, 3, 4, 99])
    assert [ask(plans, key) for key in CHAIN] == [MISS, MISS, HIT, HIT]


def test_after_the_deadline_everything_is_a_miss_and_a_late_plan_is_dropped(plans: Plans) -> None:
    ask(plans, K0, now=1.0)
    (plan,) = plans.end_step()
    assert ask(plans, K0, now=5.9) is RETRY
    plans.end_step()
    assert ask(plans, K0, now=6.0) is MISS
    plans.answer(plan.number, [0, 1])
    assert ask(plans, K0, now=6.0) is MISS


def test_without_room_a_block_is_a_miss_and_stays_one(plans: Plans) -> None:
    ask(plans, K0)
    (plan,) = plans.end_step()
    plans.answer(plan.number, [0, 1, 2])
    assert ask(plans, K0, room=1) is HIT
    assert ask(plans, K1, room=0) is MISS
    assert [ask(plans, key) for key in (K1, K2)] == [MISS, MISS]
    plans.loaded("nobody", CHAIN)
    plans.loading("r", [K0])
    plans.loaded("r", [K0])
    assert plans.finish("r") == Summary("r", 4, 0, 1, 2, 0)


def given(plans: Plans, hits: int) -> None:
    """The first blocks were promised, and all of those are answered HIT."""
    ask(plans, K0)
    (plan,) = plans.end_step()
    plans.answer(plan.number, range(hits))
    assert [ask(plans, key) for key in CHAIN[:hits]] == [HIT] * hits


def test_of_a_load_that_failed_what_came_before_the_failure_was_loaded(plans: Plans) -> None:
    given(plans, 4)
    plans.loading("r", CHAIN)
    plans.end_step()
    plans.loaded("r", [K0, K1])
    assert ask(plans, K2) is MISS
    assert plans.finish("r") == Summary("r", 4, 0, 2, 0, 2)


def test_what_the_engines_host_pool_refuses_had_no_room_nor_had_what_comes_after_it(plans: Plans) -> None:
    ask(plans, K0)
    (plan,) = plans.end_step()
    plans.answer(plan.number, [0, 1, 2, 3])
    assert [ask(plans, key) for key in (K0, K1)] == [HIT, HIT]  # the scan ends at the second one
    plans.loading("r", [K0])
    plans.end_step()
    plans.loaded("r", [K0])
    assert [ask(plans, key) for key in (K1, K2)] == [MISS, MISS]
    plans.end_step()
    assert plans.finish("r") == Summary("r", 4, 0, 1, 3, 0)


def test_a_request_whose_first_block_the_host_pool_refuses_had_no_room_for_any(plans: Plans) -> None:
    ask(plans, K0)
    (plan,) = plans.end_step()
    plans.answer(plan.number, [0, 1, 2])
    assert ask(plans, K0) is HIT
    plans.end_step()
    plans.scheduled("r")
    assert plans.finish("r") == Summary("r", 4, 0, 0, 3, 0)


@pytest.mark.parametrize(("started", "loaded"), [(True, 3), (False, 0)])
def test_what_another_request_has_brought_meanwhile_is_a_hit_if_the_request_was_computed(
    plans: Plans, started: bool, loaded: int
) -> None:
    ask(plans, K0)
    (plan,) = plans.end_step()
    plans.answer(plan.number, [0, 1, 2])
    assert ask(plans, K3) is MISS  # it asks for nothing that was promised: all of that is in the host pool
    if started:
        plans.scheduled("r")
    assert plans.finish("r") == Summary("r", 4, 0, loaded, 0, 3 - loaded)


def test_a_preempted_request_gets_a_new_plan_and_the_old_answer_is_dropped(plans: Plans) -> None:
    ask(plans, K0)
    (old,) = plans.end_step()
    assert plans.number_of("r") == old.number
    plans.drop("r")
    assert plans.number_of("r") == 0
    plans.answer(old.number, [0, 1, 2, 3])
    assert ask(plans, K1) is RETRY
    (new,) = plans.end_step()
    assert (plans.number_of("r") == new.number, new.runs()) == (True, [[1, 4]])
    plans.answer(new.number, [1])
    assert ask(plans, K1) is HIT
    plans.loading("r", [K1])
    plans.loaded("r", [K1])
    assert plans.finish("r") == Summary("r", 4, 0, 1, 0, 0)


@pytest.mark.parametrize("promised_again", [False, True])
def test_a_load_that_ends_after_its_request_was_preempted_counts_once(plans: Plans, promised_again: bool) -> None:
    given(plans, 3)
    plans.loading("r", CHAIN[:3])
    plans.end_step()
    plans.drop("r")
    if promised_again:  # the engine has given K2 away meanwhile
        ask(plans, K2)
        (new,) = plans.end_step()
        plans.answer(new.number, [2])
    plans.loaded("r", CHAIN[:3])
    plans.scheduled("r")
    assert plans.finish("r") == Summary("r", 4, 0, 3, 0, 0)


def test_a_lost_session_empties_every_plan_and_new_requests_get_new_ones(plans: Plans) -> None:
    plans.begin("answered", lambda: [CHAIN])
    plans.lookup("answered", K0, 0.0, ROOM)
    ask(plans, K0)
    first, second = plans.end_step()
    plans.answer(first.number, [0, 1])
    plans.begin("unsent", lambda: [CHAIN])
    plans.lookup("unsent", K0, 0.0, ROOM)
    plans.fail_open()
    plans.answer(second.number, [0, 1])
    assert plans.end_step() == []
    assert {plans.lookup(name, K0, 0.0, ROOM) for name in ("r", "answered", "unsent")} == {MISS}
    plans.begin("later", lambda: [CHAIN])
    assert plans.lookup("later", K0, 0.0, ROOM) is RETRY


def test_unknown_requests_and_keys_outside_the_chain_are_misses(plans: Plans) -> None:
    assert plans.lookup("nobody", K0, 0.0, ROOM) is MISS
    assert ask(plans, b"other") is MISS


def test_an_answer_for_a_finished_request_is_dropped(plans: Plans) -> None:
    ask(plans, K0)
    (plan,) = plans.end_step()
    assert plans.finish("r") == Summary("r", 4, 0, 0, 0, 0)
    plans.answer(plan.number, [0])
    assert ask(plans, K0) is MISS
    assert plans.finish("r") == Summary("r", 0, -1, 0, 0, 0)


def test_a_request_never_asked_for_says_so_and_counts_the_blocks_of_its_prompt_alone(plans: Plans) -> None:
    chain = list(CHAIN)
    plans.begin("grows", lambda: [chain])
    plans.scheduled("grows")
    chain.append(b"decoded")
    plans.scheduled("grows")
    assert plans.finish("grows") == Summary("grows", 4, -1, 0, 0, 0)
    plans.scheduled("nobody")
    assert plans.finish("nobody") == Summary("nobody", 0, -1, 0, 0, 0)


def test_each_request_has_its_own_retry_in_a_step(plans: Plans) -> None:
    plans.begin("s", lambda: [CHAIN])
    assert ask(plans, K0) is RETRY
    assert plans.lookup("s", K0, 0.0, ROOM) is RETRY
    assert len(plans.end_step()) == 2


def test_a_block_that_nobody_could_be_asked_for_is_a_miss_in_the_account_and_no_local_hit(plans: Plans) -> None:
    plans.begin("q", lambda: [CHAIN[:3]])
    assert plans.decline("q", K1) is MISS
    assert plans.decline("q", K2) is MISS
    assert plans.end_step() == []
    summary = plans.finish("q")
    assert summary == Summary("q", 3, 1, 0, 0, 0, unasked_blocks=2)
    assert plans.decline("gone", K0) is MISS


def test_a_plan_that_found_no_place_in_the_queue_was_asked_of_nobody_and_the_next_one_counts(plans: Plans) -> None:
    assert ask(plans, K0) is RETRY
    (plan,) = plans.end_step()
    plans.unsent(plan.number)
    assert ask(plans, K0) is MISS
    plans.drop("r")
    assert ask(plans, K0) is RETRY
    (second,) = plans.end_step()
    assert not second.again
    plans.unsent(second.number)
    assert plans.finish("r") == Summary("r", 4, 0, 0, 0, 0, unsent_blocks=4)


def test_of_a_request_that_ends_before_anybody_could_be_asked_nothing_is_said(plans: Plans) -> None:
    assert ask(plans, K0) is RETRY
    assert plans.finish("r") == Summary("r", 4, 0, 0, 0, 0)


# -- several groups ---------------------------------------------------------------------------------


def test_every_group_has_a_retry_of_its_own_in_each_step(hybrid: Plans) -> None:
    for _ in range(2):
        assert [ask(hybrid, key) for key in CHAIN[:2]] == [RETRY, MISS]
        assert [ask(hybrid, key) for key in reversed(WINDOWS)] == [RETRY, MISS, MISS, MISS]
        # the engine begins anew within the step, where a group has shortened the boundary
        assert [ask(hybrid, key) for key in CHAIN[:2]] == [RETRY, MISS]
        assert [ask(hybrid, key) for key in reversed(WINDOWS)] == [RETRY, MISS, MISS, MISS]
        hybrid.end_step()


def test_a_plan_says_of_each_group_what_the_engine_lacks(hybrid: Plans) -> None:
    ask(hybrid, K2)
    for key in (WINDOWS[3], WINDOWS[1]):  # it holds block 2 of the window
        ask(hybrid, key)
    (plan,) = hybrid.end_step()
    assert plan.keys == [*CHAIN, *WINDOWS]
    assert plan.runs() == [[2, 4], [5, 6], [7, 8]]
    ask(hybrid, WINDOWS[0])  # what it asks for later is not in this plan
    assert plan.runs() == [[2, 4], [5, 6], [7, 8]]
    hybrid.answer(plan.number, [2, 3, 4, 6, 7])
    assert [ask(hybrid, key) for key in (K2, K3, WINDOWS[3], WINDOWS[2], WINDOWS[1])] == [HIT, HIT, HIT, MISS, MISS]


def hybrid_planned(hybrid: Plans) -> None:
    """Two blocks of full attention and their window lie ready."""
    for key in (K0, K1, *reversed(WINDOWS)):
        ask(hybrid, key)
    (plan,) = hybrid.end_step()
    hybrid.answer(plan.number, [0, 1, 4, 5])


def test_of_several_groups_all_blocks_have_room_or_none_is_promoted(hybrid: Plans) -> None:
    hybrid_planned(hybrid)
    assert [ask(hybrid, key, room=3) for key in (K0, WINDOWS[3], WINDOWS[1])] == [MISS, MISS, MISS]
    assert [ask(hybrid, key) for key in (K0, K1, WINDOWS[1])] == [MISS, MISS, MISS]
    assert hybrid.hits_this_step == 0
    assert hybrid.finish("r") == Summary("r", 4, 0, 0, 2, 0)


def test_what_came_is_counted_in_blocks_of_the_prompt_and_a_part_of_it_is_nothing(hybrid: Plans) -> None:
    hybrid_planned(hybrid)
    came = [K0, K1, WINDOWS[1], WINDOWS[0]]
    assert [ask(hybrid, key, room=4) for key in came] == [HIT] * 4
    hybrid.loading("r", came)
    hybrid.loaded("r", came[:3])
    hybrid.loaded("r", came)
    assert hybrid.finish("r") == Summary("r", 4, 0, 2, 0, 0)


def test_of_several_groups_one_block_that_the_host_pool_refuses_is_no_room_for_all(hybrid: Plans) -> None:
    hybrid_planned(hybrid)
    assert [ask(hybrid, key) for key in (K0, K1, WINDOWS[1])] == [HIT] * 3
    hybrid.loading("r", [K0, K1])
    hybrid.end_step()
    hybrid.loaded("r", [K0, K1])
    assert [ask(hybrid, key) for key in (WINDOWS[1], WINDOWS[0])] == [MISS, MISS]
    assert hybrid.finish("r") == Summary("r", 4, 0, 0, 2, 0)


def test_of_several_groups_a_load_that_failed_in_part_has_lost_all(hybrid: Plans) -> None:
    hybrid_planned(hybrid)
    came = [K0, K1, WINDOWS[1], WINDOWS[0]]
    assert [ask(hybrid, key) for key in came] == [HIT] * 4
    hybrid.loading("r", came)
    hybrid.end_step()
    hybrid.loaded("r", came[:3])
    assert hybrid.finish("r") == Summary("r", 4, 0, 0, 0, 2)


def test_of_windows_alone_a_few_blocks_stand_for_the_prefix() -> None:
    plans = Plans([Group(7, WINDOW, 8, 4)], load_deadline=5.0)
    plans.begin("r", lambda: [WINDOWS])
    assert [ask(plans, key) for key in reversed(WINDOWS)] == [RETRY, MISS, MISS, MISS]
    (plan,) = plans.end_step()
    plans.answer(plan.number, [1, 2])
    assert [ask(plans, key) for key in reversed(WINDOWS)] == [MISS, HIT, HIT, MISS]
    plans.loading("r", WINDOWS[1:3])
    plans.loaded("r", WINDOWS[1:3])
    assert plans.finish("r") == Summary("r", 4, 0, 3, 0, 0)


def test_a_plan_after_a_preemption_says_that_it_is_one_where_the_agent_was_asked_before(plans: Plans) -> None:
    ask(plans, K0)
    plans.drop("r")  # in the step of its first lookup: the agent has heard of nothing
    ask(plans, K0)
    (second,) = plans.end_step()
    assert not second.again
    plans.drop("r")
    ask(plans, K0)
    (third,) = plans.end_step()
    assert third.again


@pytest.mark.parametrize(("first", "second", "loaded"), [([0, 1], [0, 1, 2], 2), ([0, 1], [0], 2), ([], [0, 1], 0)])
def test_of_a_preempted_request_each_block_counts_once(
    plans: Plans, first: list[int], second: list[int], loaded: int
) -> None:
    """As the first answer said, which the agent has counted the misses by."""
    for hits in (first, second):
        ask(plans, K0)
        (plan,) = plans.end_step()
        plans.answer(plan.number, hits)
        assert [ask(plans, key) for key in CHAIN[: len(hits)]] == [HIT] * len(hits)
        plans.loading("r", CHAIN[: len(hits)])
        plans.end_step()
        plans.loaded("r", CHAIN[: len(hits)])
        if hits is first:
            plans.drop("r")
    assert plans.finish("r") == Summary("r", 4, 0, loaded, 0, 0)


def test_what_was_promised_too_late_is_told_as_late(plans: Plans) -> None:
    ask(plans, K0, now=1.0)
    (plan,) = plans.end_step()
    assert ask(plans, K0, now=6.0) is MISS
    plans.answer(plan.number, [0, 1])
    plans.scheduled("r")
    assert plans.finish("r") == Summary("r", 4, 0, 0, 0, 0, late_blocks=2)
