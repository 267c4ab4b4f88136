"""One plan per request: RETRY once a step, HIT once a block, MISS for everything else."""

import pytest

from kvpool_client.plans import Answer, Plans, Summary

CHAIN = [b"k0", b"k1", b"k2", b"k3"]


@pytest.fixture
def plans() -> Plans:
    made = Plans(load_deadline=5.0)
    made.begin("r", lambda: CHAIN)
    return made


def ask(plans: Plans, key: bytes, now: float = 0.0, room: bool = True) -> Answer:
    return plans.lookup("r", key, now, room)


def test_a_step_answers_retry_once_and_then_miss(plans: Plans) -> None:
    assert [ask(plans, key) for key in CHAIN] == [Answer.RETRY, Answer.MISS, Answer.MISS, Answer.MISS]
    (plan,) = plans.end_step()
    assert (plan.chain, plan.start) == (CHAIN, 0)
    assert [ask(plans, key) for key in CHAIN[:2]] == [Answer.RETRY, Answer.MISS]
    assert plans.end_step() == []


def test_a_hit_is_given_once_and_asked_again_it_is_a_miss(plans: Plans) -> None:
    ask(plans, b"k1")
    (plan,) = plans.end_step()
    assert plan.start == 1
    plans.answer(plan.number, [1, 2])
    assert [ask(plans, key) for key in (b"k1", b"k2", b"k3")] == [Answer.HIT, Answer.HIT, Answer.MISS]
    assert plans.hits_this_step == 2
    assert [ask(plans, key) for key in (b"k1", b"k2")] == [Answer.MISS, Answer.MISS]
    plans.end_step()
    assert plans.hits_this_step == 0
    plans.loaded("r", 1)  # of the two that lay ready one has come
    assert plans.finish("r") == Summary("r", 4, 1, 1, 0)


def test_a_plan_says_nothing_of_blocks_before_its_start_or_beyond_its_chain(plans: Plans) -> None:
    ask(plans, b"k2")
    (plan,) = plans.end_step()
    plans.answer(plan.number, [-1, 0, 1, 2, 3, 4, 99])
    assert [ask(plans, key) for key in CHAIN] == [Answer.MISS, Answer.MISS, Answer.HIT, Answer.HIT]


def test_after_the_deadline_everything_is_a_miss_and_a_late_plan_is_dropped(plans: Plans) -> None:
    ask(plans, b"k0", now=1.0)
    (plan,) = plans.end_step()
    assert ask(plans, b"k0", now=5.9) is Answer.RETRY
    plans.end_step()
    assert ask(plans, b"k0", now=6.0) is Answer.MISS
    plans.answer(plan.number, [0, 1])
    assert ask(plans, b"k0", now=6.0) is Answer.MISS


def test_without_room_a_block_is_a_miss_and_stays_one(plans: Plans) -> None:
    ask(plans, b"k0")
    (plan,) = plans.end_step()
    plans.answer(plan.number, [0, 1])
    assert ask(plans, b"k0", room=False) is Answer.MISS
    assert ask(plans, b"k0") is Answer.MISS
    plans.loaded("nobody", 5)
    assert plans.finish("r") == Summary("r", 4, 0, 0, 1)


def test_a_preempted_request_gets_a_new_plan_and_the_old_answer_is_dropped(plans: Plans) -> None:
    ask(plans, b"k0")
    (old,) = plans.end_step()
    plans.drop("r")
    plans.answer(old.number, [0, 1, 2, 3])
    assert ask(plans, b"k1") is Answer.RETRY
    (new,) = plans.end_step()
    assert (new.number != old.number, new.start) == (True, 1)
    plans.answer(new.number, [1])
    assert ask(plans, b"k1") is Answer.HIT
    plans.loaded("r", 1)
    assert plans.finish("r") == Summary("r", 4, 0, 1, 0)


def test_a_lost_session_empties_every_plan_and_new_requests_get_new_ones(plans: Plans) -> None:
    plans.begin("answered", lambda: CHAIN)
    plans.lookup("answered", b"k0", 0.0, True)
    ask(plans, b"k0")
    first, second = plans.end_step()
    plans.answer(first.number, [0, 1])
    plans.begin("unsent", lambda: CHAIN)
    plans.lookup("unsent", b"k0", 0.0, True)
    plans.fail_open()
    plans.answer(second.number, [0, 1])
    assert plans.end_step() == []
    assert {plans.lookup(name, b"k0", 0.0, True) for name in ("r", "answered", "unsent")} == {Answer.MISS}
    plans.begin("later", lambda: CHAIN)
    assert plans.lookup("later", b"k0", 0.0, True) is Answer.RETRY


def test_unknown_requests_and_keys_outside_the_chain_are_misses(plans: Plans) -> None:
    assert plans.lookup("nobody", b"k0", 0.0, True) is Answer.MISS
    assert ask(plans, b"other") is Answer.MISS
    assert plans.end_step() == []


def test_an_answer_for_a_finished_request_is_dropped(plans: Plans) -> None:
    ask(plans, b"k0")
    (plan,) = plans.end_step()
    assert plans.finish("r") == Summary("r", 4, 0, 0, 0)
    plans.answer(plan.number, [0])
    assert ask(plans, b"k0") is Answer.MISS
    assert plans.finish("r") == Summary("r", 0, -1, 0, 0)


def test_a_request_never_asked_for_says_so_and_counts_the_blocks_of_its_prompt_alone(plans: Plans) -> None:
    chain = list(CHAIN)
    plans.begin("grows", lambda: chain)
    plans.scheduled("grows")
    chain.append(b"decoded")
    plans.scheduled("grows")
    assert plans.finish("grows") == Summary("grows", 4, -1, 0, 0)
    plans.scheduled("nobody")
    assert plans.finish("nobody") == Summary("nobody", 0, -1, 0, 0)


def test_each_request_has_its_own_retry_in_a_step(plans: Plans) -> None:
    plans.begin("s", lambda: CHAIN)
    assert ask(plans, b"k0") is Answer.RETRY
    assert plans.lookup("s", b"k0", 0.0, True) is Answer.RETRY
    assert len(plans.end_step()) == 2


def test_a_block_that_nobody_could_be_asked_for_is_a_miss_in_the_account_and_no_local_hit() -> None:
    plans = Plans(load_deadline=1.0)
    plans.begin("r", lambda: [b"a", b"b", b"c"])
    assert plans.decline("r", b"b") is Answer.MISS
    assert plans.decline("r", b"c") is Answer.MISS
    assert plans.end_step() == []
    summary = plans.finish("r")
    assert (summary.prompt_blocks, summary.asked, summary.loaded_blocks) == (3, 1, 0)
    assert plans.decline("gone", b"a") is Answer.MISS
