"""What the agent could not be asked for, and in whose name: what its client says of a request that is no plan's."""

import types

import pytest
from scheduler_bench import FULL_ATTENTION, KEYS, ROWS, Request, Session, attached, request

from kvpool_agent.account import Account
from kvpool_agent.flows.finished import told_misses
from kvpool_client import scheduler_side
from kvpool_client.groups import FULL, Group
from kvpool_client.plans import Answer
from kvpool_client.scheduler_side import HostPool, SchedulerSide


@pytest.fixture
def side(monkeypatch: pytest.MonkeyPatch) -> SchedulerSide:
    monkeypatch.setattr(scheduler_side.session, "Session", lambda *_: Session())
    return attached(FULL_ATTENTION)


@pytest.mark.parametrize(("away", "reason"), [("nobody", "not_attached"), ("no_place", "busy")])
def test_blocks_that_the_agent_could_not_be_asked_for_are_misses_with_a_reason(
    side: SchedulerSide, away: str, reason: str
) -> None:
    session, account = side.session, Account()
    attached_now = session.attached
    if away == "nobody":
        session.attached = None
    asked = request(side, "r", KEYS[:3])
    session.full = True
    side.lookup(KEYS[0], asked)
    side.end_step(["r"], ())
    session.attached, session.full = attached_now, False
    side.request_finished(asked)
    ((header, _),) = session.posted
    told_misses(account, header)
    assert (account.counters, account.misses) == ({"looked_up_blocks": 3, "loaded_blocks": 0}, {reason: 3})


def test_where_no_plans_are_made_the_agent_itself_says_why(side: SchedulerSide) -> None:
    made = attached([Group(0, FULL, 0, 4), Group(1, "ChunkedLocalAttentionSpec", 1, 4)])
    asked = request(made, "r", KEYS[:3])
    assert made.lookup(KEYS[0], asked) is Answer.MISS
    made.request_finished(asked)
    header, _ = made.session.posted[-1]
    assert (header["asked"], header["unasked"], header["unsent"]) == (0, 0, 0)


def test_a_request_that_says_it_is_the_agents_own_stays_in_its_cache_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_side.session, "Session", lambda *_: Session())
    made = SchedulerSide("/nowhere", {}, HostPool(ROWS, 1, 0, 0), FULL_ATTENTION, mark="m")
    made.on_attached(types.SimpleNamespace(load_seconds=10.0))
    for name, mark in (("a", "in:acme"), ("x", "apart")):
        says = Request(name, {KEYS[0]: 4}, {"m": mark, scheduler_side.PROBE: "anything"})
        made.new_request(says)
        made.submit_store(types.SimpleNamespace(job_id=ord(name), keys=KEYS[:1], chunk_ids=[0], req_context=says))
    ((header, _),) = made.session.posted
    assert (header["verb"], header["job"], header["namespace"]) == ("store", ord("a"), "acme")
