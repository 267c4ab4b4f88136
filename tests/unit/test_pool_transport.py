"""`transport.type: RDMA` asked for and impossible is a condition with its reason, never a fallback that nobody sees."""

from typing import Any

import pytest
from agent_status import agent

from kvpool_contract.reasons import explain
from kvpool_contract.status import Transport
from kvpool_operator.desired.events import pool_events
from kvpool_operator.desired.status import Member, Observed, pool_status

BY_RDMA = Transport("RDMA", "RDMA")
METADATA = {"name": "chat", "namespace": "team-a", "uid": "u"}


def member(name: str, transport: Transport | None) -> Member:
    status = None
    if transport is not None:
        status = agent(transport=transport)
    return Member(name, f"{name}-uid", status=status, error="" if status else "silent")


def seen(*transports: Transport | None, asked: str = "RDMA") -> dict[str, Any]:
    members = [member(name, transport) for name, transport in zip("abc", transports, strict=False)]
    return pool_status("chat", 1, Observed(members, transport=asked), None, "2026-01-01T00:00:00Z")


def condition(status: dict[str, Any]) -> tuple[str, str, str] | None:
    found = [c for c in status["conditions"] if c["type"] == "TransportReady"]
    return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else None


@pytest.mark.parametrize("asked", ["Auto", "TCP"])
def test_where_rdma_was_not_demanded_nothing_is_said_of_it(asked: str) -> None:
    assert condition(seen(Transport(asked, "TCP", "rdma_no_device"), asked=asked)) is None


def test_all_members_by_rdma() -> None:
    status = seen(BY_RDMA, BY_RDMA)
    assert condition(status) == ("True", "AllByRdma", "Every agent that answers, of 2, has an RDMA device in use.")
    assert status["phase"] == "Ready"


def test_one_that_can_not_is_named_with_its_reason_and_what_was_seen_and_the_pool_is_degraded() -> None:
    status = seen(BY_RDMA, Transport("RDMA", "TCP", "rdma_memlock", "Errno: 12"))
    sentence = f"1 of 2 go on over TCP: b. {explain('rdma_memlock')} (Errno: 12)"
    assert condition(status) == ("False", "RdmaImpossible", sentence)
    assert status["phase"] == "Degraded"
    (event,) = [e for e in pool_events(METADATA, None, status, []) if e.reason == "RdmaImpossible"][:1]
    assert (event.type, event.message) == ("Warning", sentence)


def test_a_pod_that_was_made_for_tcp_is_named_too() -> None:
    told = condition(seen(Transport("TCP", "TCP")))
    assert told == ("False", "RdmaImpossible", f"1 of 1 go on over TCP: a. {explain('rdma_off')}")


def test_devices_that_are_being_opened_are_no_fault_yet() -> None:
    status = seen(BY_RDMA, Transport("RDMA", "TCP", "rdma_looking"))
    assert condition(status) == ("False", "DevicesOpening", "1 of 2 are opening their RDMA devices: b.")
    assert status["phase"] == "Ready"


def test_of_agents_that_do_not_answer_nothing_is_known() -> None:
    assert condition(seen(None)) == (
        "False", "NoAgentAnswers", "No agent answers; the condition AgentsReady says why.",
    )  # fmt: skip
