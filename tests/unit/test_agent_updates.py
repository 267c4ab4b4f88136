"""Agents updated in place: which one is next, and when nothing is touched."""

import json
from typing import Any

import pytest
from agent_status import agent

from kvpool_operator.desired.pods import living
from kvpool_operator.desired.status import Member
from kvpool_operator.desired.update import RUN_SECONDS, START_SECONDS, Change, Patience, annotation, next_step

OLD, NEW = "agent:1", "agent:2"
AT, NOW = "2026-01-01T00:00:00Z", 1767225600.0
PATIENCE = Patience(100.0)
WARM = agent("Ready(warm)")


def pod(
    name: str,
    image: str = OLD,
    *,
    ready: bool = True,
    container: str = "c1",
    from_container: str = "",
    owner: str = "set",
    labels: dict[str, str] | None = None,
    waiting: str = "",
) -> dict[str, Any]:
    state = {"waiting": {"reason": waiting}} if waiting else {"running": {}}
    record = annotation(Change(name, name, image, "", "", from_container), AT)
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "resourceVersion": "7",
            "labels": labels or {},
            "annotations": {"kvpool.io/agent-update": record} if from_container else {},
            "ownerReferences": [{"uid": owner, "controller": True}],
        },
        "spec": {"initContainers": [{"name": "kvpool-client", "image": OLD}, {"name": "kvpool-agent", "image": image}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "initContainerStatuses": [{"name": "kvpool-agent", "containerID": container, "state": state}],
        },
    }


def step(*pods: dict[str, Any], now: float = NOW, **members: Member) -> tuple[bool, str, str]:
    """Whether all is done, the reason, and the pod that is changed."""
    asked = [members.get(p["metadata"]["name"]) or member(p["metadata"]["name"]) for p in pods]
    found = next_step(living(list(pods)), asked, NEW, PATIENCE, now)
    return found.verdict[0], found.verdict[1], found.change.pod if found.change else ""


def member(name: str, status: Any = WARM, **more: Any) -> Member:
    return Member(name, name, status=status, **more)


def test_one_after_another_and_then_all_are_updated() -> None:
    assert step(pod("a"), pod("b")) == (False, "Updating", "a")
    assert step(pod("a", NEW, from_container="c1"), pod("b")) == (False, "Updating", "")  # the kubelet has not begun
    back = pod("a", NEW, container="c2", from_container="c1")
    assert step(back, pod("b")) == (False, "Updating", "b")
    assert step(back, pod("b", NEW, container="c2", from_container="c1")) == (True, "AllUpdated", "")


def test_what_is_changed_names_the_version_that_was_looked_at_and_the_container_that_runs() -> None:
    (first, second) = (pod("a"), pod("b"))
    change = next_step(living([first, second]), [member("a"), member("b")], NEW, PATIENCE, NOW).change
    assert change == Change("a", "a", NEW, OLD, "7", "c1")
    assert json.loads(annotation(change, AT)) == {"container": "c1", "at": AT}


def test_one_whose_container_does_not_run_is_told_sooner() -> None:
    """A kubelet that can't pull the image says only that the former container has ended."""
    away = pod("a", NEW, container="", from_container="c1", ready=False)
    assert step(away, pod("b"), now=NOW + RUN_SECONDS) == (False, "Updating", "")
    assert step(away, pod("b"), now=NOW + RUN_SECONDS + 1) == (False, "UpdateStopped", "")


def test_an_agent_that_is_being_changed_is_not_missed_and_one_that_crashes_is() -> None:
    def found(document: dict[str, Any], *, started: bool = False) -> Any:
        (said,) = document["status"]["initContainerStatuses"]
        said |= {"restartCount": 1, "started": started}
        (one,) = living([document])
        return one.expected, one.stuck

    assert found(pod("a", NEW, container="c1", from_container="c1")) == (False, "")
    assert found(pod("a", NEW, container="c1")) == (True, "")
    assert found(pod("a", NEW, container="c2", from_container="c1")) == (False, "")
    assert found(pod("a", NEW, container="c2", from_container="c1"), started=True) == (True, "")
    assert found(pod("a", NEW, container="c1", from_container="c1", waiting="ErrImagePull")) == (
        False, "ImagePullBackOff",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("away", "status"),
    [
        (pod("a", NEW, container="c2", from_container="c1", ready=False), WARM),
        (pod("a", NEW, container="c2", from_container="c1"), agent("Warming")),
        (pod("a", NEW, container="c2", from_container="c1"), agent("Ready(warm)", attached=False)),
        (pod("a", NEW, container="c2", from_container="c1"), None),
        (pod("a", NEW, container="", from_container="c1", ready=False), WARM),
    ],
    ids=["not ready", "warming", "without its engine", "silent", "between two containers"],
)
def test_the_next_waits_until_the_last_is_back_and_after_a_while_it_is_told(away: dict[str, Any], status: Any) -> None:
    asked = {"a": member("a", status)}
    assert step(away, pod("b"), **asked) == (False, "Updating", "")
    late = NOW + START_SECONDS + PATIENCE.seconds + 1
    assert step(away, pod("b"), now=late, **asked) == (False, "UpdateStopped", "")


def test_where_the_pool_blocks_one_that_warms_takes_as_long_as_it_takes_and_any_other_does_not() -> None:
    away, late = pod("a", NEW, container="c2", from_container="c1", ready=False), NOW + START_SECONDS + 10_000
    for state, reason in (("Warming", "Updating"), ("Starting", "UpdateStopped")):
        found = next_step(living([away]), [member("a", agent(state))], NEW, Patience(100.0, blocks=True), late)
        assert found.verdict[1] == reason


def test_one_that_fails_ends_it_and_gets_the_next_image_first() -> None:
    broken = pod("b", NEW, container="c1", from_container="c1", ready=False, waiting="ImagePullBackOff")
    assert step(pod("a"), broken) == (False, "UpdateStopped", "")
    degraded = pod("b", NEW, container="c2", from_container="c1")
    refused = member("b", agent("Ready(degraded)", "engine_port_version"))
    assert step(pod("a"), degraded, b=refused) == (False, "UpdateStopped", "")
    another = pod("b", "agent:3", container="c2", from_container="c1", ready=False)
    assert step(pod("a"), another) == (False, "Updating", "b")


def test_nothing_is_touched_while_any_member_is_not_ready() -> None:
    assert step(pod("a"), pod("b", NEW, ready=False)) == (False, "WaitingForMembers", "")
    assert step(pod("a", NEW), pod("b", NEW, ready=False)) == (True, "AllUpdated", "")


def test_groups_the_last_of_a_workload_and_the_ailing_are_left_alone() -> None:
    group = {"leaderworkerset.sigs.k8s.io/name": "x"}
    assert step(pod("a", labels=group), pod("b", NEW)) == (False, "LeftAlone", "")
    assert step(pod("a", owner="one"), pod("b", NEW)) == (False, "LeftAlone", "")
    ailing = member("a", agent("Ready(degraded)", "warm_deadline"))
    assert step(pod("a"), pod("b"), a=ailing) == (False, "Updating", "b")
    assert step(pod("a"), pod("b", NEW), a=ailing) == (False, "LeftAlone", "")


def test_pods_without_an_agent_are_nobodys_business() -> None:
    bare = pod("c")
    bare["spec"]["initContainers"] = []
    assert step(bare) == (False, "NoMembers", "")
    assert step(bare, pod("a"), pod("b")) == (False, "Updating", "a")


def test_a_record_that_somebody_has_written_over_says_nothing() -> None:
    edited = pod("a", NEW, ready=False)
    edited["metadata"]["annotations"]["kvpool.io/agent-update"] = "{}"
    assert step(edited, pod("b")) == (False, "WaitingForMembers", "")
