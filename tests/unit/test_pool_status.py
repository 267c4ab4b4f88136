"""A pool's status and its Events: what is counted, what degrades it, and that nothing new is nothing to write."""

from typing import Any

import pytest
from agent_status import agent as bare_agent

from kvpool_contract.reasons import REASONS, explain
from kvpool_contract.status import AgentStatus, ConfigInForce, Hits, Tls
from kvpool_operator.desired.events import Event, member_events, pool_events
from kvpool_operator.desired.status import MAX_MESSAGE, Member, Observed, pool_status
from kvpool_operator.desired.status_fields import MAX_FORMATS

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
METADATA = {"name": "chat", "namespace": "team-a", "uid": "pool-uid"}
POOL_LABELLED = "No pod of this namespace carries the label kvpool.io/pool=chat."


DOCUMENT = "0123456789ab"


def agent(*said: Any, **more: Any) -> AgentStatus:
    return bare_agent(*said, **{"config": ConfigInForce(DOCUMENT), "tls": Tls("Managed", "ok")} | more)


def member(name: str, status: AgentStatus | None = None, **more: Any) -> Member:
    return Member(name, f"{name}-uid", status=status, **{"tls": "Managed"} | more)


def status(*members: Member, before: Any = None, now: str = NOW, generation: int = 1, **seen: Any) -> dict[str, Any]:
    return pool_status(
        "chat", generation, Observed(members, **{"document": DOCUMENT, "tls": "Managed"} | seen), before, now
    )


def conditions(given: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    return {c["type"]: (c["status"], c["reason"], c["message"]) for c in given["conditions"]}


WARM = member("a", agent())
COLD = member("b", agent("Ready(degraded)", "nothing_to_warm"))
WARMING = member("c", agent("Warming"))
BARE = member("d", agent("Ready(degraded)", "no_shm_room", attached=False, format="", format_fields={}))
SILENT = member("e", error="no answer within 3 s")
BEGINNING = member("f", expected=False)
UNINJECTED = member("g", injected=False)
STUCK = member("i", expected=False, stuck="ImagePullBackOff")


def test_a_pool_of_warm_members() -> None:
    given = status(WARM, member("b", agent(hits=Hits(50, 30, 20))))
    assert given == {
        "observedGeneration": 1,
        "phase": "Ready",
        "ready": "2/2",
        "warm": "2/2",
        "configured": "2/2",
        "tls": "Managed",
        "hitPercent": {"local": 30, "shared": 20, "total": 50},
        "formats": [{"format": "ffffffff", "members": 2}],
        "conditions": [
            {
                "type": kind,
                "status": "True",
                "reason": reason,
                "message": message,
                "lastTransitionTime": NOW,
                "observedGeneration": 1,
            }
            for kind, reason, message in (
                ("ConfigValid", "Accepted", "The spec is accepted."),
                ("Configured", "AllConfigured", "2 of 2 agents have taken over the present configuration."),
                ("CertificatesReady", "AllCertified", "2 of 2 agents have a certificate."),
                ("AgentsReady", "AllReady", "2 of 2 agents are ready."),
                ("CacheWarm", "AllWarm", "2 of 2 members hold their hot set."),
                ("Ready", "MembersReady", "2 of 2 agents are ready."),
            )
        ],
    }


@pytest.mark.parametrize(
    ("members", "phase", "ready", "warm", "agents", "overall"),
    [
        ((), "Pending", "0/0", "0/0", "NoMembers", "NoMembers"),
        ((BEGINNING,), "Pending", "0/1", "0/1", "MembersStarting", "MembersStarting"),
        ((WARMING,), "Pending", "0/1", "0/1", "MembersStarting", "MembersStarting"),
        ((WARM, WARMING), "Ready", "1/2", "1/2", "MembersStarting", "MembersReady"),
        ((COLD,), "Ready", "1/1", "0/1", "AllReady", "MembersReady"),
        ((WARM, BARE), "Degraded", "2/2", "1/2", "AllReady", "MembersDegraded"),
        ((WARM, SILENT), "Degraded", "1/2", "1/2", "AgentsUnreachable", "MembersDegraded"),
        ((WARM, STUCK), "Degraded", "1/2", "1/2", "AgentsNotStarted", "MembersDegraded"),
        ((WARM, UNINJECTED), "Degraded", "1/2", "1/2", "NotInjected", "MembersDegraded"),
    ],
)
def test_phase_and_counts(
    members: tuple[Member, ...], phase: str, ready: str, warm: str, agents: str, overall: str
) -> None:
    given = status(*members)
    told = conditions(given)
    assert (given["phase"], given["ready"], given["warm"]) == (phase, ready, warm)
    assert (told["AgentsReady"][1], told["Ready"][1]) == (agents, overall)
    assert (told["Ready"][0] == "True") == (phase == "Ready")


def test_the_sentences_name_members_and_reasons() -> None:
    told = conditions(status(WARM, BARE, SILENT, UNINJECTED))
    assert told["AgentsReady"][2] == f"1 of 4: g. 1 {explain('not_injected')}"
    skipped = member("h", injected=False, skipped="host_network")
    assert conditions(status(skipped))["AgentsReady"][2] == f"1 of 1: h. 1 {explain('host_network')}"
    (event,) = member_events("team-a", "chat", [skipped])
    assert event.reason == "NotInjected" and event.message.endswith(explain("host_network"))
    assert told["CacheWarm"][2] == (
        f"1 of 4 members hold their hot set. 1 {explain('agent_unreachable')} 1 {explain('no_shm_room')} "
        f"1 {explain('not_injected')}"
    )
    assert told["Ready"][2].startswith("3 of 4: d, e, g. 1 agent_unreachable: ")
    silent = conditions(status(SILENT))["AgentsReady"][2]
    assert silent == f"1 of 1: e (no answer within 3 s). {explain('agent_unreachable')}"
    stuck = conditions(status(STUCK))["AgentsReady"][2]
    assert stuck == f"1 of 1: i (ImagePullBackOff). {explain('agent_not_started')}"
    (event,) = member_events("team-a", "chat", [STUCK])
    assert (event.reason, event.message) == ("AgentNotStarted", f"Pool chat: {explain('agent_not_started')}")
    assert conditions(status())["Ready"][2] == POOL_LABELLED


def test_many_members_fit_into_a_message() -> None:
    many = [member(f"pod-{n:03}", error="no connection") for n in range(500)]
    given = status(*many)
    assert conditions(given)["AgentsReady"][2].startswith("500 of 500: pod-000, pod-001, pod-002 and 497 more (no ")
    long = conditions(status(invalid="x" * 5000))["ConfigValid"][2]
    assert len(long) == MAX_MESSAGE and long.endswith("…")
    formats = [member(f"p{n}", agent(format=f"{n:032x}"[::-1])) for n in range(MAX_FORMATS + 5)]
    assert len(status(*formats)["formats"]) == MAX_FORMATS


def test_an_invalid_spec_and_a_taken_name_are_told_and_the_members_counted_as_ever() -> None:
    given = status(WARM, invalid="pool field spec.x: wrong")
    assert (given["phase"], given["ready"]) == ("Degraded", "1/1")
    assert conditions(given)["ConfigValid"] == ("False", "Invalid", "pool field spec.x: wrong")
    assert conditions(given)["Ready"] == ("False", "ConfigInvalid", "pool field spec.x: wrong")
    given = status(WARM, refused=("NameTaken", "ConfigMap chat-kvpool is another's; rename it"))
    assert conditions(given)["Ready"] == ("False", "NameTaken", "ConfigMap chat-kvpool is another's; rename it")
    assert (given["phase"], conditions(given)["ConfigValid"][0]) == ("Degraded", "True")


def test_nothing_new_is_the_same_status_and_only_a_change_is_dated() -> None:
    first = status(WARM, COLD)
    assert status(WARM, COLD, before=first, now=LATER) == first
    changed = status(WARM, BARE, before=first, now=LATER, generation=2)
    dates = {c["type"]: (c["lastTransitionTime"], c["observedGeneration"]) for c in changed["conditions"]}
    assert dates == {
        "ConfigValid": (NOW, 2),
        "Configured": (NOW, 2),
        "CertificatesReady": (NOW, 2),
        "AgentsReady": (NOW, 2),
        "CacheWarm": (NOW, 2),
        "Ready": (LATER, 2),
    }


@pytest.mark.parametrize(("hits", "percent"), [((0, 0, 0), None), ((2, 1, 0), (33, 0, 33)), ((0, 1, 1), (50, 50, 100))])
def test_hits_are_rounded_percent(hits: tuple[int, int, int], percent: tuple[int, int, int] | None) -> None:
    found = status(member("a", agent(hits=Hits(*hits)))).get("hitPercent")
    assert (found and tuple(found.values())) == percent


def told(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.type, event.reason) for event in events]


def test_events_of_a_pool_are_told_when_something_changes() -> None:
    def between(before: Any, after: dict[str, Any], *members: Member) -> list[Event]:
        return pool_events(METADATA, before, after, members)

    pending, ready, degraded = status(WARMING), status(WARM), status(WARM, BARE)
    invalid = status(WARM, invalid="wrong")
    assert between(None, pending) == []
    assert told(between(pending, ready)) == [("Normal", "Ready"), ("Normal", "CacheWarm")]
    assert between(ready, ready) == []
    assert told(between(ready, degraded)) == [("Warning", "MembersDegraded")]
    assert told(between(ready, invalid)) == [("Warning", "ConfigInvalid")]
    assert told(between(None, invalid)) == [("Warning", "ConfigInvalid"), ("Normal", "CacheWarm")]
    assert told(between(invalid, ready)) == [("Normal", "ConfigValid"), ("Normal", "Ready")]
    taken = status(WARM, refused=("NameTaken", "sentence"))
    assert told(between(ready, taken)) == [("Warning", "NameTaken")]


def test_formats_that_differ_are_told_once_with_the_fields() -> None:
    other = member("b", agent(format="a" * 32, format_fields={"model": "b", "x": 1}))
    one, two = status(WARM), status(WARM, other)
    (event,) = [e for e in pool_events(METADATA, one, two, [WARM, other]) if e.reason == "FormatsDiffer"]
    assert event.message == (
        "The members have 2 formats and share blocks within each only. They differ in: model, x. Give the engines the "
        "same model and options; during a rolling update this passes."
    )
    assert pool_events(METADATA, two, two, [WARM, other]) == []
    assert told(pool_events(METADATA, two, one, [WARM])) == []


def test_events_of_pods_say_the_reason_and_the_same_twice_has_one_name() -> None:
    late = member("h", agent("Ready(degraded)", "warm_deadline"))
    members = [WARM, COLD, WARMING, BEGINNING, BARE, SILENT, UNINJECTED, late]
    events = member_events("team-a", "chat", members)
    assert [(dict(e.regarding)["name"], e.reason) for e in events] == [
        ("d", "EngineBare"),
        ("e", "AgentUnreachable"),
        ("g", "NotInjected"),
        ("h", "NotWarm"),
    ]
    for event, word in zip(events, ("no_shm_room", "agent_unreachable", "not_injected", "warm_deadline"), strict=True):
        assert event.type == "Warning" and event.message.endswith(explain(word)) and word in REASONS
    again = member_events("team-a", "chat", members)
    assert [e.name for e in again] == [e.name for e in events] and len({e.name for e in events}) == 4
    document = events[0].document(NOW)
    assert document["involvedObject"] == {
        "apiVersion": "v1", "kind": "Pod", "name": "d", "namespace": "team-a", "uid": "d-uid",
    }  # fmt: skip
    assert document["metadata"] == {"name": events[0].name, "namespace": "team-a"}


FORMER = ConfigInForce("ba9876543210", 1)
MANY = ConfigInForce(DOCUMENT, 2, needs_new_pods=["engine.port", "arenaBytes"])
ONE = ConfigInForce(DOCUMENT, 2, needs_new_pods=["arenaBytes"])
BROKEN = ConfigInForce(DOCUMENT, 2, "config_invalid", "configuration is not JSON: x; write the file anew")


@pytest.mark.parametrize(
    ("configs", "count", "reason", "message"),
    [
        ((FORMER, None), "1/2", "MembersFollowing", "1 of 2 go on with a former one until the "),
        ((MANY, ONE, None, FORMER), "3/4", "NeedsNewPods", "2 of 4 run with former values of engine.port, "
         "tiers.memory.size: m0, m1. Make them anew, "),
        ((MANY, BROKEN), "1/2", "ConfigNotUsed", f"1 of 2: m1 ({BROKEN.problem}). {explain('config_invalid')}"),
        ((ConfigInForce(),), "0/1", "MembersFollowing", "1 of 1 go on with "),  # an agent that shows no hash
    ],
)  # fmt: skip
def test_how_members_follow_the_configuration(configs: Any, count: str, reason: str, message: str) -> None:
    members = [member(f"m{n}", agent(**({"config": each} if each else {}))) for n, each in enumerate(configs)]
    given = status(*members)
    assert given["configured"] == count
    told = conditions(given)["Configured"]
    assert told[:2] == ("False", reason) and told[2].startswith(message)
    # what brings itself to an end degrades nothing; a file that can't be used does
    assert given["phase"] == ("Degraded" if reason == "ConfigNotUsed" else "Ready")
    assert conditions(given)["Ready"][1] == ("ConfigNotUsed" if reason == "ConfigNotUsed" else "MembersReady")
    (event,) = [e for e in pool_events(METADATA, status(WARM), given, members) if e.reason != "CacheWarm"] or [None]
    assert (event and (event.type, event.reason, event.message)) == (
        None if reason == "MembersFollowing" else ("Warning", reason, told[2])
    )


def test_members_that_do_not_answer_follow_nothing_and_only_those_that_do_are_judged() -> None:
    given = status(WARM, SILENT, BEGINNING, UNINJECTED)
    assert given["configured"] == "1/4"
    assert conditions(given)["Configured"] == (
        "True", "AllConfigured", "1 of 4 agents have taken over the present configuration.",
    )  # fmt: skip
    assert conditions(status(SILENT, BEGINNING))["Configured"][:2] == ("False", "NoAgentAnswers")
    nowhere = status(WARM, document="")
    assert (nowhere["configured"], conditions(nowhere)["Configured"][1]) == ("0/1", "NotMade")


PAUSED = member("a", agent("Ready(degraded)", "paused"))
RESUMED = member("a", agent("Ready(degraded)", "resumed"))


@pytest.mark.parametrize(
    ("members", "phase", "reason", "count"),
    [
        ((), "Paused", "Paused", "0 of 0"),
        ((WARM, PAUSED), "Paused", "Paused", "1 of 2"),
        ((BEGINNING,), "Paused", "Paused", "0 of 1"),
        ((PAUSED, SILENT), "Degraded", "MembersDegraded", "1 of 2: e."),
        ((PAUSED, member("b", agent(config=BROKEN))), "Degraded", "ConfigNotUsed", "1 of 2: b "),
    ],
)
def test_a_paused_pool(members: tuple[Member, ...], phase: str, reason: str, count: str) -> None:
    given = status(*members, paused=True)
    told = conditions(given)["Ready"]
    assert (given["phase"], told[0], told[1]) == (phase, "False", reason)
    assert told[2].startswith(count)
    assert reason != "Paused" or told[2].endswith(explain("paused"))
    assert status(*members, paused=True, invalid="x")["phase"] == "Degraded"


def test_pausing_and_going_on_are_told_and_no_pod_is_to_blame() -> None:
    ready, paused, after = status(COLD), status(PAUSED, paused=True), status(RESUMED)
    # until an agent has heard of it, it says what it said before
    assert (status(PAUSED)["phase"], after["phase"]) == ("Ready", "Ready")
    assert told(pool_events(METADATA, ready, paused, [PAUSED])) == [("Normal", "Paused")]
    assert told(pool_events(METADATA, paused, after, [RESUMED])) == [("Normal", "Ready")]
    assert member_events("team-a", "chat", [PAUSED, RESUMED]) == []


def test_members_that_do_not_reach_each_other_degrade_the_pool_by_name() -> None:
    other = member("z", agent())
    given = status(WARM, other, apart=[("a-uid", "z-uid")])
    told = conditions(given)
    assert (given["phase"], told["Ready"][1], told["AgentsReady"][:2]) == (
        "Degraded", "MembersApart", ("False", "MembersApart"),
    )  # fmt: skip
    assert told["Ready"][2].startswith("a does not reach z. members_apart: ")
    assert "port 7700" in told["Ready"][2]
    many = status(WARM, other, apart=[("a-uid", "z-uid")] * 9)
    assert "and so 6 pairs more" in conditions(many)["AgentsReady"][2]


def test_an_update_that_has_stopped_degrades_the_pool_and_one_that_goes_on_does_not() -> None:
    going = status(WARM, update=(False, "Updating", "1 of 2."))
    assert (going["phase"], conditions(going)["AgentsUpdated"]) == ("Ready", ("False", "Updating", "1 of 2."))
    stopped = status(WARM, update=(False, "UpdateStopped", "It has not come back."))
    assert (stopped["phase"], conditions(stopped)["Ready"][1]) == ("Degraded", "UpdateStopped")
    assert told(pool_events(METADATA, going, stopped, [WARM])) == [
        ("Warning", "UpdateStopped"),
        ("Warning", "UpdateStopped"),
    ]
    assert "AgentsUpdated" not in conditions(status(WARM))
