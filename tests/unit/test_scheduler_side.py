"""What the engine's scheduler thread is answered, and what goes to the agent: the cap, preemption, late copies."""

import types
from typing import Any

import pytest
from scheduler_bench import FULL_ATTENTION, HYBRID, KEYS, ROWS, Request, Session, attached, job, request

from kvpool_client import scheduler_side, wire
from kvpool_client.groups import FULL, STATE, Group
from kvpool_client.plans import Answer
from kvpool_client.samples import CANARY, unpacked
from kvpool_client.scheduler_side import HostPool, SchedulerSide


@pytest.fixture
def loads() -> list[int]:
    return []


@pytest.fixture
def side(monkeypatch: pytest.MonkeyPatch, loads: list[int]) -> SchedulerSide:
    loader = types.SimpleNamespace(submit=lambda job, *_: loads.append(job))
    monkeypatch.setattr(scheduler_side.session, "Session", lambda *_: Session())
    monkeypatch.setattr(scheduler_side, "Loader", lambda *_: loader)
    return attached(FULL_ATTENTION)


def planned(side: SchedulerSide, name: str, keys: list[bytes]) -> Request:
    """A request whose blocks all lie ready."""
    made = request(side, name, keys)
    assert side.lookup(keys[0], made) is Answer.RETRY
    side.end_step((), ())
    header, tail = side.session.posted[-1]
    assert (header["verb"], tail) == ("lookup", b"".join(keys))
    assert (header["lacks"], header["room"]) == ([[0, len(keys)]], ROWS // 2)
    side.on_event(wire.Frame({"verb": "plan", "plan": header["plan"], "hits": list(range(len(keys)))}))
    assert side.finished_jobs() == []
    return made


def test_promotions_in_flight_hold_half_of_the_host_pool_at_most(side: SchedulerSide) -> None:
    first = planned(side, "first", KEYS[:6])
    assert [side.lookup(key, first) for key in KEYS[:6]] == [Answer.HIT] * 4 + [Answer.MISS] * 2
    side.submit_load(job(1, KEYS[:4], first))
    side.end_step((), ())
    second = planned(side, "second", KEYS[10:13])
    assert side.lookup(KEYS[10], second) is Answer.MISS
    side.ledger.close(1, success=True)
    side.finished_jobs()
    third = planned(side, "third", KEYS[10:13])
    assert side.lookup(KEYS[10], third) is Answer.HIT
    side.request_finished(first)
    header = side.session.posted[-1][0]
    assert (header["loaded"], header["without_room"], header["lost"]) == (0, 2, 4)  # the load has brought nothing


def test_a_preempted_request_is_planned_anew(side: SchedulerSide) -> None:
    context = planned(side, "r", KEYS[:3])
    assert side.lookup(KEYS[0], context) is Answer.HIT
    side.end_step((), ("r",))
    assert side.lookup(KEYS[0], context) is Answer.RETRY
    side.end_step((), ())
    assert [header.get("again") for header, _ in side.session.posted] == [None, True]


def copied(job_id: int) -> wire.Frame:
    return wire.Frame({"verb": "copied", "job": job_id, "whole": True, "stored": 1})


def test_a_copy_is_committed_only_while_its_job_is_open(side: SchedulerSide) -> None:
    context = request(side, "r", KEYS[:2])
    side.submit_store(job(1, KEYS[:2], context))
    side.on_event(copied(1))
    side.submit_store(job(2, KEYS[:2], context))
    side.drain()
    side.on_event(copied(2))
    assert side.session.verbs() == ["store", "commit", "store", "forget"]
    assert [(result.job, result.success) for result in side.finished_jobs()] == [(1, True), (2, False)]


def test_a_store_says_its_rows_and_parents_in_the_order_of_the_chain(side: SchedulerSide) -> None:
    context = request(side, "r", KEYS[:4])
    side.submit_store(job(1, [KEYS[3], KEYS[1]], context))
    header, tail = side.session.posted[-1]
    assert header == {"verb": "store", "job": 1, "rows": [1, 0]}
    assert tail == KEYS[1] + KEYS[0] + KEYS[3] + KEYS[2]


def test_a_store_that_finds_the_queue_full_is_let_go_and_offered_again(side: SchedulerSide) -> None:
    context = request(side, "r", KEYS[:1])
    side.session.full = True
    side.submit_store(job(1, KEYS[:1], context))
    assert [(result.job, result.success) for result in side.finished_jobs()] == [(1, False)]
    assert side.new_request(Request("next", {}))


@pytest.mark.parametrize(
    "header",
    [{"verb": "plan"}, {"verb": "plan", "plan": 1, "hits": None}, {"verb": "plan", "plan": 1, "hits": ["x"]}],
)
def test_a_plan_that_makes_no_sense_ends_the_session_and_never_reaches_the_scheduler(
    side: SchedulerSide, header: dict[str, Any]
) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):  # on the session's thread, which begins anew
        side.on_event(wire.Frame(header))
    assert side.finished_jobs() == []


def test_without_a_session_every_lookup_is_a_miss(side: SchedulerSide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side.session, "attached", None)
    assert side.lookup(KEYS[0], request(side, "b", KEYS[:2])) is Answer.MISS
    assert side.session.posted == []


@pytest.mark.usefixtures("side")
def test_a_model_with_groups_that_no_plan_is_made_for_shares_nothing() -> None:
    side = attached([*FULL_ATTENTION, Group(1, "other", 1, 4)])
    context = request(side, "a", KEYS[:2])
    assert side.lookup(KEYS[0], context) is Answer.MISS
    side.submit_store(job(1, KEYS[:2], context))
    assert [(result.job, result.success) for result in side.finished_jobs()] == [(1, False)]
    assert side.session.posted == []


def hybrid_keys(blocks: int) -> tuple[list[bytes], list[bytes]]:
    chains = [[bytes([i]) * 32 + group.number.to_bytes(4, "big") for i in range(blocks)] for group in HYBRID]
    return chains[0], chains[1]


@pytest.mark.usefixtures("side")
def test_a_store_of_several_groups_names_parents_of_full_attention_alone() -> None:
    side = attached(HYBRID)
    window, full = hybrid_keys(2)
    context = request(side, "r", [])
    context._offload_key_positions.update({key: 4 * (i + 1) for chain in (window, full) for i, key in enumerate(chain)})
    side.submit_store(job(1, [full[1], window[1], full[0]], context))
    header, tail = side.session.posted[-1]
    assert header["rows"] == [2, 0, 1]
    assert tail == full[0] + bytes(36) + full[1] + full[0] + window[1] + bytes(36)


@pytest.mark.usefixtures("side")
def test_what_ends_inside_a_block_is_no_block_of_a_chain_and_is_not_stored() -> None:
    side = attached([Group(0, STATE, 1, 4), Group(1, FULL, 0, 4)])
    states, full = hybrid_keys(3)
    context = request(side, "r", [])
    whole = {key: 4 * (i + 1) for chain in (states[:2], full[:2]) for i, key in enumerate(chain)}
    context._offload_key_positions.update(whole | {states[2]: 10, full[2]: 10})
    side.submit_store(job(1, [states[2], full[2]], context))
    assert [(result.job, result.success) for result in side.finished_jobs()] == [(1, False)]
    assert side.session.posted == []
    side.submit_store(job(2, [full[1], states[2], states[1]], context))
    header, tail = side.session.posted.pop()
    assert header["rows"] == [0, 2]
    assert tail == full[1] + full[0] + states[1] + bytes(36)
    assert [side.lookup(key, context) for key in (full[0], full[2], states[1], states[2])] == [
        Answer.RETRY, Answer.MISS, Answer.RETRY, Answer.MISS,
    ]  # fmt: skip
    side.end_step((), ())
    _, tail = side.session.posted.pop()
    assert tail == b"".join([*states[:2], *full[:2]])
    side.request_finished(context)
    assert side.session.posted.pop()[1] == b"".join([*states[:2], *full[:2]])


@pytest.mark.usefixtures("side")
def test_one_lookup_carries_the_chains_of_all_groups_and_what_the_engine_lacks_of_each() -> None:
    side = attached(HYBRID)
    window, full = hybrid_keys(4)
    context = request(side, "r", [])
    context._offload_key_positions.update({key: 4 * (i + 1) for chain in (full, window) for i, key in enumerate(chain)})
    assert [side.lookup(key, context) for key in (full[2], full[3])] == [Answer.RETRY, Answer.MISS]
    # the engine holds the window's block 2 itself
    assert [side.lookup(key, context) for key in (window[3], window[1])] == [Answer.RETRY, Answer.MISS]
    side.end_step((), ())
    header, tail = side.session.posted[-1]
    assert tail == b"".join([*window, *full])
    assert (header["verb"], header["lacks"]) == ("lookup", [[1, 2], [3, 4], [6, 8]])


def test_the_agents_probe_is_computed_and_its_store_bears_the_mark_and_is_no_request_of_the_account(
    side: SchedulerSide,
) -> None:
    probe = Request("p", {KEYS[0]: 4}, {"kvpool_probe": "mark"})
    assert side.new_request(probe), "offered also where the engine holds it already"
    assert side.lookup(KEYS[0], probe) is Answer.MISS
    side.end_step(["p"], [])
    side.submit_store(job(1, [KEYS[0]], probe))
    side.request_finished(probe)
    assert [(header["verb"], header["probe"]) for header, _ in side.session.posted] == [("store", "mark")]


def test_what_is_no_mark_makes_no_probe(side: SchedulerSide) -> None:
    for number, parameters in enumerate(({}, {"kvpool_probe": 7}, {"kvpool_probe": ""}, {"other": "mark"}, None)):
        asks = Request(f"r{number}", {KEYS[0]: 4}, parameters)
        side.new_request(asks)
        assert side.lookup(KEYS[0], asks) is Answer.RETRY
        side.submit_store(job(number, [KEYS[0]], asks))
        side.request_finished(asks)
    assert side.session.verbs() == ["store", "finished"] * 5
    assert not any("probe" in header for header, _ in side.session.posted)


def test_with_new_weights_what_is_open_neither_loads_nor_stores_and_the_next_request_brings_the_session_back(
    side: SchedulerSide,
) -> None:
    old = planned(side, "old", KEYS[:4])
    attached = side.session.attached
    side.submit_store(job(1, KEYS[4:6], old))
    side.session.posted.clear()
    side.session.wanted = None
    side.renew({"format": "new"})
    assert side.session.wanted == {"format": "new"}
    assert [(result.job, result.success) for result in side.finished_jobs()] == [(1, False)]
    # attached again, by whatever way: the old request is still of the old weights
    side.session.attached = attached
    assert side.lookup(KEYS[0], old) is Answer.MISS
    side.submit_store(job(2, KEYS[6:8], old))
    assert [(result.job, result.success) for result in side.finished_jobs()] == [(2, False)]
    side.request_finished(old)
    assert side.session.posted == []
    assert side.session.wanted == {"format": "new"}
    new = request(side, "new", KEYS[:4])
    assert side.session.wanted is True
    assert side.lookup(KEYS[0], new) is Answer.RETRY
    side.submit_store(job(3, KEYS[:1], new))
    side.end_step((), ())
    side.request_finished(new)
    assert side.session.verbs() == ["store", "lookup", "finished"]


def test_what_the_agent_says_of_heads_holds_until_the_session_is_lost(side: SchedulerSide) -> None:
    heads = {"verb": "heads", "number": 1, "whole": True, "added": 0, "seconds": 60.0, "format": "00" * 16}
    side.on_event(wire.Frame(heads))
    unknown = request(side, "a", KEYS[:3])
    assert [side.lookup(key, unknown) for key in KEYS[:3]] == [Answer.MISS] * 3
    side.end_step(["a"], ())
    side.request_finished(unknown)
    ((header, _),) = side.session.posted
    assert (header["verb"], header["asked"], header["unknown"]) == ("finished", 0, 3)
    assert "device" not in header  # nobody has said
    side.on_lost()
    assert side.lookup(KEYS[0], request(side, "b", KEYS[:3])) is Answer.RETRY


def test_frames_say_the_cache_namespace_of_their_request_and_of_one_that_is_apart_there_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[dict[str, str]] = []
    loader = types.SimpleNamespace(submit=lambda _job, _blocks, _plan, named: said.append(named))
    monkeypatch.setattr(scheduler_side.session, "Session", lambda *_: Session())
    monkeypatch.setattr(scheduler_side, "Loader", lambda *_: loader)
    made = SchedulerSide("/nowhere", {}, HostPool(ROWS, 1, 0, 0), FULL_ATTENTION, mark="m")
    made.on_attached(types.SimpleNamespace(load_seconds=10.0))  # type: ignore[arg-type]
    for name, parameters in (("a", {"m": "in:acme"}), ("d", None), ("f", {"other": "in:acme"}), ("x", {"m": "apart"})):
        request = Request(name, {key: i for i, key in enumerate(KEYS[:2])}, parameters)
        made.new_request(request)
        asked = made.lookup(KEYS[0], request)
        assert asked is (Answer.MISS if name == "x" else Answer.RETRY)
        made.end_step((), ())
        made.submit_store(types.SimpleNamespace(job_id=ord(name), keys=KEYS[:1], chunk_ids=[0], req_context=request))
        made.submit_load(types.SimpleNamespace(job_id=-ord(name), keys=KEYS[:1], chunk_ids=[0], req_context=request))
        made.request_finished(request)
        frames = [header for header, _ in made.session.posted]  # type: ignore[attr-defined]
        wanted = [] if name == "x" else ["lookup", "store", "finished"]
        assert [header["verb"] for header in frames] == wanted
        assert {header.get("namespace") for header in frames} == (
            {"acme"} if name == "a" else {None} if wanted else set()
        )
        made.session.posted.clear()  # type: ignore[attr-defined]
    assert said == [{"namespace": "acme"}, {}, {}, {}]


def test_what_the_device_held_of_a_request_when_it_was_first_looked_at_is_told_at_its_end(side: SchedulerSide) -> None:
    asked = request(side, "a", KEYS[:3])
    side.timings.on_device("a", 32)
    side.timings.on_device("a", 48)  # again, in a later step
    side.timings.drop("a")
    side.request_finished(asked)
    ((header, _),) = side.session.posted
    assert header["device"] == 32
    assert side.timings.take_device("a") == -1


@pytest.mark.parametrize("came", [True, False])
def test_a_prompt_that_is_asked_for_is_told_at_the_requests_end_if_all_that_was_promised_came(
    side: SchedulerSide, came: bool
) -> None:
    made = request(side, "r", KEYS[:2])
    assert side.lookup(KEYS[0], made) is Answer.RETRY
    side.end_step((), ())
    plan = side.session.posted[-1][0]["plan"]
    side.on_event(wire.Frame({"verb": "plan", "plan": plan, "hits": [0, 1], "sample": 8}))
    side.finished_jobs()
    assert [side.lookup(key, made) for key in KEYS[:2]] == [Answer.HIT] * 2
    side.submit_load(job(1, KEYS[:2], made))
    for key in KEYS[:2] if came else ():
        assert side.ledger.begin_copy(1, 0.0)
        side.ledger.end_copy(1, key, valid=True)
    side.ledger.close(1, success=True)
    side.finished_jobs()
    side.end_step(("r",), ())
    side.samples.ended("r", list(range(9)))
    side.request_finished(made)
    told = [(header["plan"], unpacked(tail)) for header, tail in side.session.posted if header["verb"] == "sample"]
    assert told == ([(plan, list(range(8)))] if came else [])


def test_of_the_agents_canary_nothing_is_looked_up_stored_or_counted_and_its_cached_tokens_are_told(
    side: SchedulerSide,
) -> None:
    def served(name: str) -> None:
        context = Request(name, {key: 4 * (i + 1) for i, key in enumerate(KEYS[:2])}, {CANARY: "mark"})
        assert side.new_request(context) is False
        assert side.lookup(KEYS[0], context) is Answer.MISS
        side.submit_store(job(1, KEYS[:2], context))
        assert [(result.job, result.success) for result in side.finished_jobs()] == [(1, False)]
        side.end_step((name,), ())
        side.timings.began(name, 4, 9, 0.0)
        side.timings.first_token(name, 1.0)
        side.request_finished(context)

    served("of an agent that has not asked")
    assert side.session.posted == []
    side.samples.want("r", 1, 4)
    served("of one that has")
    assert side.session.posted == [({"verb": "canary", "mark": "mark", "held": 4}, b"")]
    side.on_lost()
    served("of another agent")
    assert len(side.session.posted) == 1
