"""Rollouts, restarts and scaling follow the agents' readiness, and wait for nobody who isn't there."""

from cluster.engines import Member
from cluster.kube import wait_for
from cluster.observers import EndpointWatch, Traffic
from cluster.standins import NAME, Served, StandIns, ask, sum_blocks, wait_known

BLOCKS = 8
COLD = ("Ready(degraded)", "nothing_to_warm")


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


def test_a_rollout_of_the_same_engine_is_warm_pod_by_pod_and_the_service_never_has_fewer_replicas(
    standins: StandIns,
) -> None:
    old = standins.create(2)
    tokens = standins.heat("hot", BLOCKS)
    names = {member.pod.name for member in old}
    with (
        EndpointWatch(standins, NAME) as endpoints,
        Traffic(standins.cluster_ip(NAME), ask=lambda host: ask(host, tokens, port=80), every=0.1) as traffic,
    ):
        standins.apply(2, annotations={"example.test/revision": "2"})
        new = standins.wait_ready(2, without=names)
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
        assert ask(member.pod.address, tokens).computed == 0
    standins.wait_status(phase="Ready", ready="2/2", warm="2/2")


def test_a_rollout_of_another_format_is_never_called_warm_and_never_waits(standins: StandIns) -> None:
    old = standins.create(2)
    tokens = standins.heat("hot", BLOCKS)
    with EndpointWatch(standins, NAME) as endpoints:
        standins.apply(2, model="another")
        new = standins.wait_ready(2, without={member.pod.name for member in old})
    assert endpoints.fewest_ready() == 2
    assert states(new) == [COLD, COLD]
    assert [member.status().warm.loaded_blocks for member in new] == [0, 0]
    assert {member.status().format for member in new}.isdisjoint({""})
    status = standins.wait_status(phase="Ready", ready="2/2", warm="0/2")
    assert [entry["members"] for entry in status["formats"]] == [2]
    # what one of them computes, the other loads; of the old format's blocks nothing is there
    first, second = new
    assert ask(first.pod.address, tokens) == Served(computed=BLOCKS)
    wait_for("its blocks", lambda: first.status().arena.blocks == BLOCKS, 30)
    second.wait_for_blocks(first, BLOCKS)
    wait_known(second, tokens)
    assert ask(second.pod.address, tokens) == Served(pool=BLOCKS)


def test_a_pool_that_is_restarted_as_a_whole_or_comes_from_zero_waits_for_nobody(standins: StandIns) -> None:
    first = standins.create(2)
    tokens = standins.heat("hot", BLOCKS)
    standins.kubectl("delete", "pods", "--all", "--wait=false", "--grace-period=0", "--force")
    again = standins.wait_ready(2, without={member.pod.name for member in first})
    assert states(again) == [COLD, COLD]

    standins.scale(NAME, 0)
    standins.wait_status(phase="Pending", ready="0/0", warm="0/0")
    standins.scale(NAME, 2)
    last = standins.wait_ready(2, without={member.pod.name for member in again})
    assert states(last) == [COLD, COLD]
    assert ask(last[0].pod.address, tokens) == Served(computed=BLOCKS)
    standins.wait_status(phase="Ready", ready="2/2")
