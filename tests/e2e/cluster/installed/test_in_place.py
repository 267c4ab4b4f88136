"""Agents of running pods get another image, one after another, under engines that run on; a bad one costs one pod its
readiness, and no more."""

from collections.abc import Iterator

import pytest

from cluster.chart import Chart
from cluster.engines import Member
from cluster.images import AGENT_IMAGE, EARLIER_IMAGE, ENGINE_IMAGE, IN_CLEAR
from cluster.installed.conftest import namespace
from cluster.kube import POOLS, wait_for
from cluster.observers import EndpointWatch, Traffic
from cluster.standins import NAME, StandIns, ask

BLOCKS = 8
GROUPED = "leaderworkerset.sigs.k8s.io/name"
CONDITION = "AgentsUpdated"


@pytest.fixture
def may_update(chart: Chart) -> Iterator[None]:
    chart.upgrade("--set=agent.inPlaceUpdates=true")
    yield
    chart.upgrade()


@pytest.fixture(scope="module")
def earlier(chart: Chart, request: pytest.FixtureRequest) -> Iterator[StandIns]:
    """Three ready members, with earlier agents, that are to be updated where they run."""
    agent = {"image": EARLIER_IMAGE, "updateStrategy": {"type": "InPlace"}}
    with namespace(chart, request) as home:
        home.create(3, pool_spec=IN_CLEAR | {"agent": agent})
        yield home


def agents(standins: StandIns, members: list[Member]) -> list[tuple[str, int]]:
    """Image of the agent, and how often its container was started anew."""
    images = standins.agent_images()
    return [(images[m.pod.name], standins.agent_restarts(m.pod.name)) for m in members]


def test_without_the_charts_permission_it_is_said_and_nothing_is_touched(earlier: StandIns) -> None:
    members = earlier.members()
    earlier.set_pool({"agent": {"image": AGENT_IMAGE}})
    pool = earlier.custom.get_namespaced_custom_object(*POOLS[:2], earlier.namespace, POOLS[2], NAME)
    wait_for("it is seen", lambda: seen(earlier) == pool["metadata"]["generation"], 60)
    told = earlier.wait_condition(CONDITION, "UpdateNotAllowed")
    assert told["status"] == "False" and "agent.inPlaceUpdates" in told["message"]
    assert agents(earlier, members) == [(EARLIER_IMAGE, 0)] * 3
    earlier.set_pool({"agent": {"image": EARLIER_IMAGE}})


def seen(standins: StandIns) -> int:
    """The generation of the pool that the condition is about."""
    return int(standins.condition(CONDITION).get("observedGeneration", 0))


def test_agents_are_updated_one_by_one_and_a_bad_image_ends_it_at_the_first(
    earlier: StandIns, may_update: None
) -> None:
    standins = earlier
    members = sorted(standins.members(), key=lambda member: member.pod.name)
    tokens = standins.heat("hot", BLOCKS)
    first, _, grouped = members
    standins.kubectl("label", "pod", grouped.pod.name, f"{GROUPED}=x")
    with (
        EndpointWatch(standins, NAME) as endpoints,
        Traffic(standins.cluster_ip(NAME), ask=lambda host: ask(host, tokens, port=80), every=0.1) as traffic,
    ):
        standins.set_pool({"agent": {"image": AGENT_IMAGE}})
        told = standins.wait_condition(CONDITION, "LeftAlone")
        assert grouped.pod.name in told["message"] and "LeaderWorkerSet" in told["message"]
        assert agents(standins, members) == [(AGENT_IMAGE, 1), (AGENT_IMAGE, 1), (EARLIER_IMAGE, 0)]
        standins.kubectl("label", "pod", grouped.pod.name, f"{GROUPED}-")
        standins.wait_condition(CONDITION, "AllUpdated")
        wait_for("all endpoints", lambda: endpoints.ready_now() == 3, 30)
    assert agents(standins, members) == [(AGENT_IMAGE, 1)] * 3
    assert (endpoints.fewest_ready(), traffic.failures) == (2, [])
    assert traffic.served > 0
    assert [member.status().state for member in members] == ["Ready(warm)"] * 3
    assert [ask(member.pod.address, tokens).computed for member in members] == [0, 0, 0]

    with EndpointWatch(standins, NAME) as endpoints:
        standins.set_pool({"agent": {"image": ENGINE_IMAGE}})  # in which there is no agent
        told = standins.wait_condition(CONDITION, "UpdateStopped")
        assert first.pod.name in told["message"] and "spec.agent.image" in told["message"]
        assert [image for image, _ in agents(standins, members)] == [ENGINE_IMAGE, AGENT_IMAGE, AGENT_IMAGE]
        events = standins.core.list_namespaced_event(standins.namespace).items
        assert standins.pool_status()["phase"] == "Degraded"
        assert ("Warning", "UpdateStopped") in {(event.type, event.reason) for event in events}
        standins.set_pool({"agent": {"image": AGENT_IMAGE}})
        standins.wait_condition(CONDITION, "AllUpdated")
        wait_for("all endpoints", lambda: endpoints.ready_now() == 3, 60)
    assert endpoints.fewest_ready() == 2
    assert [image for image, _ in agents(standins, members)] == [AGENT_IMAGE] * 3
    assert [m.pod for m in standins.members() if m.pod.restarts] == []
