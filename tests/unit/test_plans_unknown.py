"""Prompts that are ruled out without asking: when, and what is told of them."""

from kvpool_client.groups import FULL, WINDOW, Group
from kvpool_client.plans import Answer, Plans, Summary

HIT, MISS, RETRY = Answer.HIT, Answer.MISS, Answer.RETRY
CHAIN = [b"k%d" % i + bytes(4) for i in range(4)]
K0, K1, _, K3, *_ = CHAIN
WINDOWS = [b"w%d" % i + (7).to_bytes(4, "big") for i in range(4)]
ROOM = 100


def ask(plans: Plans, key: bytes) -> Answer:
    return plans.lookup("r", key, 0.0, ROOM)


def test_a_prompt_that_nobody_knows_is_a_miss_in_its_first_step_and_asked_for_when_it_is_known() -> None:
    known: set[bytes] = set()
    plans = Plans([Group(0, FULL, 0, 4), Group(7, WINDOW, 8, 4)], 5.0, lambda key, now: key not in known)
    plans.begin("r", lambda: [CHAIN, WINDOWS])
    assert [ask(plans, key) for key in (K0, WINDOWS[3], K1)] == [MISS] * 3
    assert plans.end_step() == []
    assert ask(plans, K0) is MISS
    assert plans.end_step() == []
    known.add(K0)
    assert ask(plans, K0) is RETRY
    (plan,) = plans.end_step()
    assert plan.runs() == [[0, 4]]
    plans.answer(plan.number, [])
    assert ask(plans, K0) is MISS
    assert plans.finish("r") == Summary("r", 4, 0, 0, 0, 0)


def test_all_blocks_of_a_prompt_that_was_ruled_out_are_unknown_ones() -> None:
    plans = Plans([Group(0, FULL, 0, 4)], 5.0, lambda key, now: True)
    plans.begin("r", lambda: [CHAIN])
    assert ask(plans, K0) is MISS
    plans.end_step()
    plans.scheduled("r")
    assert plans.finish("r") == Summary("r", 4, 0, 0, 0, 0, unknown_blocks=4)


def test_only_where_the_engine_lacks_the_first_block_of_full_attention_a_prompt_is_ruled_out() -> None:
    plans = Plans([Group(7, WINDOW, 8, 4), Group(0, FULL, 0, 4)], 5.0, lambda key, now: True)
    for name, first in (("r", K1), ("s", WINDOWS[0])):
        plans.begin(name, lambda: [WINDOWS, CHAIN])
        assert plans.lookup(name, first, 0.0, ROOM) is RETRY
        # once it is asked for, its plan decides
        assert plans.lookup(name, K0, 0.0, ROOM) is (MISS if first == K1 else RETRY)
    assert len(plans.end_step()) == 2


def test_a_request_that_was_planned_before_its_preemption_has_had_its_misses_counted() -> None:
    ruled_out = False
    plans = Plans([Group(0, FULL, 0, 4)], 5.0, lambda key, now: ruled_out)
    plans.begin("r", lambda: [CHAIN])
    ask(plans, K0)
    (plan,) = plans.end_step()
    plans.answer(plan.number, [])
    plans.drop("r")
    ruled_out = True
    assert ask(plans, K0) is MISS
    assert plans.finish("r").unknown_blocks == 0


def test_a_request_that_was_ruled_out_before_its_preemption_was_missed_then_and_not_again() -> None:
    chain, known = CHAIN[:3], False
    plans = Plans([Group(0, FULL, 0, 4)], 5.0, lambda key, now: not known)
    plans.begin("r", lambda: [list(chain)])
    assert ask(plans, K0) is MISS
    plans.end_step()
    plans.scheduled("r")
    plans.drop("r")
    chain.append(K3)  # that it has generated
    known = True  # since somebody has computed it meanwhile
    later = CHAIN[1:]  # the first is still on the device
    assert ask(plans, K1) is RETRY
    (plan,) = plans.end_step()
    assert plan.again
    plans.answer(plan.number, range(4))
    assert [ask(plans, key) for key in later] == [HIT] * 3
    plans.loading("r", later)
    plans.end_step()
    plans.loaded("r", later)
    assert plans.finish("r") == Summary("r", 3, 0, 0, 0, 0, unknown_blocks=3)


def test_nobody_to_ask_is_no_unknown_prompt() -> None:
    plans = Plans([Group(0, FULL, 0, 4)], 5.0, lambda key, now: True)
    plans.begin("r", lambda: [CHAIN])
    assert ask(plans, K0) is MISS
    plans.end_step()
    assert plans.decline("r", K0) is MISS
    assert plans.finish("r") == Summary("r", 4, 0, 0, 0, 0, unasked_blocks=4)


def test_keys_are_gathered_once_for_a_plan_and_anew_for_the_next_which_has_more_of_them() -> None:
    gathered: list[int] = []
    grown = CHAIN[:3]

    def chains() -> list[list[bytes]]:
        gathered.append(len(grown))
        return [list(grown)]

    plans = Plans([Group(0, FULL, 0, 4)], 5.0)
    plans.begin("r", chains)
    assert ask(plans, K0) is RETRY
    assert gathered == [3]
    (plan,) = plans.end_step()
    assert plan.keys == CHAIN[:3]
    plans.drop("r")
    grown.append(K3)
    assert ask(plans, K0) is RETRY
    assert gathered == [3, 4]
    (plan,) = plans.end_step()
    assert plan.keys == CHAIN


def test_a_request_without_keys_yet_is_planned_when_it_has_some() -> None:
    keys: list[bytes] = []
    plans = Plans([Group(0, FULL, 0, 4)], 5.0)
    plans.begin("r", lambda: [keys])
    assert ask(plans, K0) is MISS
    assert plans.end_step() == []
    keys += CHAIN
    assert ask(plans, K0) is RETRY
    assert [plan.keys for plan in plans.end_step()] == [CHAIN]
