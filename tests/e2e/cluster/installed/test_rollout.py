"""Rollouts, restarts and scaling follow the agents' readiness, and wait for nobody who isn't there."""

from cluster.engines import Member
from cluster.kube import wait_for
from cluster.observers import EndpointWatch, Traffic
from cluster.standins import NAME, Served, StandIns, ask

BLOCKS = 8
COLD = ("Ready(degraded)", "nothing_to_warm")


def states(members: list[Member]) -> list[tuple[str, str]]:
    return [(status.state, status.reason) for status in (member.status() for member in members)]


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
