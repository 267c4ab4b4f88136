"""Rollouts, restarts and scaling follow the agents' readiness, and wait for nobody who isn't there."""

import pytest

from cluster import provider
from cluster.engines import Member
from cluster.installed.conftest import HOT_BLOCKS
from cluster.kube import wait_for
from cluster.observers import EndpointWatch, Traffic
from cluster.standins import NAME, Served, StandIns, ask, sum_blocks, wait_known

BLOCKS = HOT_BLOCKS
COLD = ("Ready(degraded)", "nothing_to_warm")
STALLED = [("Ready(degraded)", reason) for reason in ("warm_deadline", "warm_incomplete")]


def states(members: list[Member]) -> list[tuple[str, str]]:
    return [(status.state, status.reason) for status in (member.status() for member in members)]


def test_a_newcomer_with_a_healthy_engine_gets_no_request_before_its_hot_set_is_in(standins: StandIns) -> None:
    blocks = 24
    # a block a second, which is much longer than the engine takes to start: what holds the newcomer back is its agent
    old = standins.create(2, pool_spec={"prewarm": {"maxBytesPerSecond": "4Ki"}})
    tokens = standins.heat("hot", blocks)
    names = {member.pod.name for member in old}
    with (
        EndpointWatch(standins, NAME) as endpoints,
        Traffic(standins.cluster_ip(NAME), ask=lambda host: ask(host, tokens, port=80), every=0.1) as traffic,
    ):
        standins.scale(NAME, 3)
        third = wait_for(
            "the third pod's address",
            lambda: next((m for m in standins.members() if m.pod.name not in names and m.pod.address), None),
            60,
        )
        wait_for("its engine waits", lambda: waits(third), 60)
        assert not endpoints.was_ready(third.pod.name)
        before = traffic.served
        wait_for("requests go elsewhere", lambda: traffic.served > before + 5, 60)
        standins.wait_ready(3)
        wait_for("its endpoint", lambda: endpoints.was_ready(third.pod.name), 30)
        wait_for("it serves", lambda: sum_blocks(third) > 0, 60)
    assert traffic.failures == []
    status = third.status()
    assert (status.state, status.warm.planned_blocks, status.warm.loaded_blocks) == ("Ready(warm)", blocks, blocks)
    (ready,) = [event for event in status.events if event.word == "ready"]
    assert min(at for at, is_ready in endpoints.history(third.pod.name) if is_ready) >= ready.at
    assert status.hits.computed_blocks == 0


def waits(member: Member) -> bool:
    """Whether its engine is healthy and attached, and only the hot set is missing; it has served nobody then."""
    status = member.status()
    found = (status.engine_healthy, status.attached, status.state)
    assert sum_blocks(member) == 0 or status.state.startswith("Ready"), f"{member.pod.name} has served too early"
    if found != (True, True, "Warming"):
        raise ValueError(found)
    return True


def test_where_the_pool_blocks_a_newcomer_waits_beyond_the_deadline_and_not_for_a_source_that_is_silent(
    standins: StandIns,
) -> None:
    if not standins.provided.folder:
        pytest.skip("the network of a named cluster is its owner's")
    blocks, deadline = 200, 10
    readiness = {"targetPercent": 100, "deadlineSeconds": deadline, "onDeadline": "Block"}
    slow = {"maxBytesPerSecond": "4Ki"}  # a block a second, and as many seconds as there are blocks
    (source,) = standins.create(1, pool_spec={"readiness": readiness, "prewarm": slow})
    standins.heat("hot", blocks)
    with EndpointWatch(standins, NAME) as endpoints:
        standins.scale(NAME, 2)
        newcomer = wait_for(
            "the newcomer's address",
            lambda: next((m for m in standins.members() if m.pod.name != source.pod.name and m.pod.address), None),
            60,
        )
        wait_for("its engine waits", lambda: waits(newcomer), 60)  # the deadline counts from its attach
        passed = newcomer.status().warm.loaded_blocks + deadline + 2
        wait_for("the deadline is over", lambda: newcomer.status().warm.loaded_blocks > passed, 120)
        assert waits(newcomer) and not endpoints.was_ready(newcomer.pod.name)
        with provider.apart(standins.provided, source.pod.address, newcomer.pod.address):
            ended = wait_for("it waits no longer", lambda: (s := states([newcomer]))[0] in STALLED and s, 60)
            standins.wait_ready(2)
            wait_for("its endpoint", lambda: endpoints.was_ready(newcomer.pod.name), 30)
    assert passed < newcomer.status().warm.loaded_blocks < blocks, ended


def test_a_rollout_of_the_same_engine_is_warm_pod_by_pod_and_the_service_never_has_fewer_replicas(
    lasting: StandIns, hot: list[int]
) -> None:
    old = lasting.members()
    names = {member.pod.name for member in old}
    with (
        EndpointWatch(lasting, NAME) as endpoints,
        Traffic(lasting.cluster_ip(NAME), ask=lambda host: ask(host, hot, port=80), every=0.1) as traffic,
    ):
        lasting.apply(2, annotations={"example.test/revision": "2"})
        new = lasting.wait_ready(2, without=names)
        wait_for("both new endpoints", lambda: all(endpoints.was_ready(m.pod.name) for m in new), 30)
    assert traffic.failures == []
    assert traffic.served > 0
    assert endpoints.fewest_ready() == 2
    for member in new:
        status = member.status()
        assert (status.state, status.warm.planned_blocks, status.warm.loaded_blocks) == ("Ready(warm)", BLOCKS, BLOCKS)
        history = endpoints.history(member.pod.name)
        (ready,) = [event for event in status.events if event.word == "ready"]
        assert min(at for at, is_ready in history if is_ready) >= ready.at
        assert ask(member.pod.address, hot).computed == 0
    lasting.wait_status(phase="Ready", ready="2/2", warm="2/2")


def test_a_rollout_of_another_format_is_never_called_warm_and_never_waits(lasting: StandIns, hot: list[int]) -> None:
    old = lasting.members()
    with EndpointWatch(lasting, NAME) as endpoints:
        lasting.apply(2, model="another")
        new = lasting.wait_ready(2, without={member.pod.name for member in old})
    assert endpoints.fewest_ready() == 2
    assert states(new) == [COLD, COLD]
    assert [member.status().warm.loaded_blocks for member in new] == [0, 0]
    assert {member.status().format for member in new}.isdisjoint({""})
    status = lasting.wait_status(phase="Ready", ready="2/2", warm="0/2")
    assert [entry["members"] for entry in status["formats"]] == [2]
    # what one of them computes, the other loads; of the old format's blocks nothing is there
    first, second = new
    assert ask(first.pod.address, hot) == Served(computed=BLOCKS)
    wait_for("its blocks", lambda: first.status().arena.blocks == BLOCKS, 30)
    second.wait_for_blocks(first, BLOCKS)
    wait_known(second, hot)
    assert ask(second.pod.address, hot) == Served(pool=BLOCKS)


def test_a_pool_that_is_restarted_as_a_whole_or_comes_from_zero_waits_for_nobody(
    lasting: StandIns, hot: list[int]
) -> None:
    first = lasting.members()
    lasting.kubectl("delete", "pods", "--all", "--wait=false", "--grace-period=1")
    again = lasting.wait_ready(2, without={member.pod.name for member in first})
    assert all(state.startswith("Ready") for state, _ in states(again))  # warm, if one that was ending was still there

    lasting.scale(NAME, 0)
    lasting.wait_status(phase="Pending", ready="0/0", warm="0/0")
    wait_for("nobody is left", lambda: not lasting.core.list_namespaced_pod(lasting.namespace).items, 120)
    lasting.scale(NAME, 2)
    last = lasting.wait_ready(2, without={member.pod.name for member in again})
    assert states(last) == [COLD, COLD]
    assert ask(last[0].pod.address, hot) == Served(computed=BLOCKS)
    lasting.wait_status(phase="Ready", ready="2/2")
