"""A pool's status follows its agents: real ones, which the controller asks at the addresses of their pods."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from standin_engine import StandInEngine, prompt

from cluster.controllers import Controller
from cluster.members import HostedMember
from cluster.pools import NAME, Pools
from kvpool_contract.reasons import explain
from kvpool_operator.desired.pods import SKIPPED_ANNOTATION


@pytest.fixture
def member(pools: Pools, tmp_path: Path) -> Iterator[Callable[[], HostedMember]]:
    """Makes the next member of the pool."""
    made: list[HostedMember] = []

    def make() -> HostedMember:
        made.append(HostedMember(pools, NAME, len(made) + 1, tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def test_the_status_follows_the_agents(
    pools: Pools, controller: Controller, member: Callable[[], HostedMember]
) -> None:
    pools.create()
    pools.wait_objects()
    configuration = pools.configuration()

    first = member().create_pod()
    pools.wait_condition("AgentsReady", "False", "MembersStarting")
    first.say_started().start_agent(configuration).attach()
    pools.wait_status(phase="Ready", ready="1/1", warm="0/1")
    cold = pools.condition("CacheWarm")
    assert (cold["status"], cold["reason"]) == ("False", "MembersCold")
    assert cold["message"].startswith("0 of 1 members hold their hot set. 1 nothing_to_warm: ")

    assert first.engine
    first.engine.serve(prompt("p", 6))
    first.engine.forget()
    first.engine.serve(prompt("p", 6))
    pools.wait_status(hitPercent={"local": 50, "shared": 0, "total": 50})

    second = member().create_pod().say_started().start_agent(configuration).attach()
    status = pools.wait_status(phase="Ready", ready="2/2", warm="1/2")
    assert [entry["members"] for entry in status["formats"]] == [2]
    assert pools.kubectl("get", "kvp", NAME, "--no-headers").stdout.split()[:5] == [NAME, "Ready", "2/2", "1/2", "50"]

    # nothing happens: nothing is written, though agents are asked and their counters and clocks go on
    before, written = pools.pool()["metadata"]["resourceVersion"], controller.writes()
    controller.wait_passes(3)
    assert (pools.pool()["metadata"]["resourceVersion"], controller.writes()) == (before, written)

    second.stop_agent()
    silent = pools.wait_condition("AgentsReady", "False", "AgentsUnreachable")
    assert silent["message"].startswith(f"1 of 2: {second.name} (no connection). agent_unreachable: ")
    assert pools.wait_status(phase="Degraded", ready="1/2")
    pools.wait_event("AgentUnreachable", second.name)

    # a controller that was killed tells nothing a second time
    told = pools.events(second.name)
    controller.kill()
    controller.start()
    controller.wait_passes(2)
    assert pools.events(second.name) == told == [("Warning", "AgentUnreachable")]

    second.start_agent(configuration)
    pools.wait_status(phase="Ready", ready="2/2")
    second.stop_agent()
    second.delete_pod()
    pools.wait_status(phase="Ready", ready="1/1")


def test_bare_pods_and_formats_that_differ_are_told_with_their_reasons(
    pools: Pools, member: Callable[[], HostedMember]
) -> None:
    pools.create()
    pools.wait_objects()
    configuration = pools.configuration()
    one = member().create_pod().say_started().start_agent(configuration).attach(model="one")
    pools.wait_status(phase="Ready", ready="1/1")

    member().create_pod().say_started().start_agent(configuration).attach(model="two")
    status = pools.wait_status(phase="Ready", ready="2/2")
    assert [entry["members"] for entry in status["formats"]] == [1, 1]
    pools.wait_event("FormatsDiffer")

    elsewhere = StandInEngine(str(one.folder / "nowhere.sock")).start()  # healthy, and never attaches
    try:
        engine = {"engine": {"port": elsewhere.port}}
        readiness = {"readiness": configuration["readiness"] | {"attachGraceSeconds": 0.1}}
        bare = member().create_pod().say_started().start_agent(configuration | engine | readiness)
        pools.wait_status(phase="Degraded", ready="3/3", warm="0/3")
        told = pools.condition("Ready")
        assert told["reason"] == "MembersDegraded"
        assert told["message"].startswith(f"1 of 3: {bare.name}. 1 not_attached: The engine is healthy but ")
        pools.wait_event("EngineBare", bare.name)
    finally:
        elsewhere.close()

    uninjected = member().create_pod(injected=False)
    skipped = member().create_pod(injected=False, **{SKIPPED_ANNOTATION: "host_network"})
    for each in (uninjected, skipped):
        pools.wait_event("NotInjected", each.name)
    pools.wait_status(ready="3/5")
    told = pools.condition("AgentsReady")
    assert told["reason"] == "NotInjected"
    assert told["message"] == (
        f"2 of 5: {uninjected.name}, {skipped.name}. 1 {explain('host_network')} 1 {explain('not_injected')}"
    )
    # users' pods are looked at and nothing else
    for pod in pools.core.list_namespaced_pod(pools.namespace).items:
        assert set(pod.metadata.annotations or {}) <= {SKIPPED_ANNOTATION} and not pod.metadata.finalizers
