"""What members' canaries have found is a condition of the pool that names pods, and an Event."""

from typing import Any

from agent_status import agent

from kvpool_contract.canary import Canary
from kvpool_contract.reasons import explain
from kvpool_operator.desired.events import pool_events
from kvpool_operator.desired.status import Member, Observed, pool_status

SAME, BARE = Canary("same", same=3), Canary("not_run", "the engine's port answered 401", not_run=2)


def seen(*canaries: Canary, before: dict[str, Any] | None = None) -> dict[str, Any]:
    members = [
        Member(f"chat-{name}", f"{name}-uid", status=agent(canary=canary))
        for name, canary in zip("abcd", canaries, strict=False)
    ]
    return pool_status("chat", 1, Observed(members), before, "2026-01-01T00:00:00Z")


def faithful(status: dict[str, Any]) -> tuple[str, str, str] | None:
    found = [c for c in status["conditions"] if c["type"] == "Faithful"]
    return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else None


def events(before: dict[str, Any] | None, after: dict[str, Any]) -> list[tuple[str, str]]:
    told = pool_events({"name": "chat", "namespace": "team-a", "uid": "u"}, before, after, [])
    return [(event.type, event.reason) for event in told if event.reason in ("Faithful", "AnswersDiffer")]


def test_before_anything_was_compared_nothing_is_said() -> None:
    assert faithful(seen(Canary(), BARE)) is None


def test_one_comparison_that_gave_the_same_is_enough_and_is_no_event() -> None:
    status = seen(SAME, BARE)
    assert faithful(status) == ("True", "AnswersSame", "What was compared gave the answers that computing gives.")
    assert events(seen(Canary(), BARE), status) == []


def test_members_whose_blocks_changed_an_answer_are_named_by_their_pods_and_are_an_event() -> None:
    before = seen(SAME, SAME, SAME)
    found = Canary("differs", same=3, differs=1, distrusted=["c-uid", "gone-uid"])
    status = seen(found, SAME, SAME, before=before)
    sentence = f"1 of 3 load nothing any more from chat-c, gone-uid. {explain('canary_differs')}"
    assert faithful(status) == ("False", "AnswersDiffer", sentence)
    assert events(before, status) == [("Warning", "AnswersDiffer")]
    assert status["phase"] == "Ready", "what is not loaded is computed"
    many = Canary("differs", differs=1, distrusted=["d-uid", "e", "f", "g", "h"])
    told = faithful(seen(many, found))
    assert told is not None
    assert told[2].startswith("2 of 2 load nothing any more from c-uid, d-uid, e and 4 more. ")
    assert events(status, seen(SAME, SAME, SAME, before=status)) == [("Normal", "Faithful")]
