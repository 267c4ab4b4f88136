"""A pool's status follows its agents: real ones, which the controller asks at the addresses of their pods."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from html_tables import Elements
from standin_engine import StandInEngine, prompt

from cluster.controllers import Controller
from cluster.kube import wait_for
from cluster.members import HostedMember
from cluster.pools import NAME, SECONDS, Pools
from kvpool_contract.names import SKIPPED_ANNOTATION
from kvpool_contract.reasons import explain


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
    wait_for("its engine is told that the prompt is known", lambda: first.engine.knows(prompt("p", 6)), SECONDS)
    first.engine.forget()
    first.engine.serve(prompt("p", 6))
    pools.wait_status(hitPercent={"local": 50, "shared": 0, "total": 50})

    second = member().create_pod().say_started().start_agent(configuration).attach()
    status = pools.wait_status(phase="Ready", ready="2/2", warm="1/2")
    assert [entry["members"] for entry in status["formats"]] == [2]
    assert pools.kubectl("get", "kvp", NAME, "--no-headers").stdout.split()[:5] == [NAME, "Ready", "2/2", "1/2", "50"]

    _, shown, *_ = Elements(controller.page(f"{pools.namespace}/{NAME}")).tables
    assert [row[:2] for row in shown[1:]] == [[first.name, "Ready(degraded)"], [second.name, "Ready(warm)"]]

    # nothing happens: nothing is written, though agents are asked and their counters and clocks go on
    controller.wait_quiet(3, lambda: pools.pool()["metadata"]["resourceVersion"])

    second.stop_agent()
    # one that was being asked when it ended is told of in other words at first
    gone = f"1 of 2: {second.name} (no connection). agent_unreachable: "
    wait_for("it is told", lambda: pools.condition("AgentsReady")["message"].startswith(gone), SECONDS)
    assert pools.condition("AgentsReady")["reason"] == "AgentsUnreachable"
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


def test_members_follow_a_live_change_and_what_they_do_not_take_over_is_told(
    pools: Pools, controller: Controller, member: Callable[[], HostedMember]
) -> None:
    """The test is the kubelet: what lies in the ConfigMap gets into a pod when it says so."""
    pools.create(tiers={"memory": {"size": "4Mi"}})
    pools.wait_objects()
    one = member().create_pod().say_started().mount(pools.document()).start_agent().attach()
    two = member().create_pod().say_started().mount(pools.document()).start_agent()
    pools.wait_status(ready="1/2", configured="2/2")
    pools.wait_condition("Configured", "True", "AllConfigured")

    # a change of the pool that no agent is told changes neither document nor members
    before = pools.document()
    pools.patch({"agent": {"image": "example.test/agent:2"}})
    pools.wait_status(observedGeneration=2)
    assert pools.document() == before and pools.pool()["status"]["configured"] == "2/2"

    pools.patch({"paused": True})
    wait_for("the document says so", lambda: pools.configuration()["paused"], SECONDS)
    assert pools.configuration()["generation"] == 3
    pools.wait_status(phase="Paused", configured="0/2", ready="1/2")
    one.mount(pools.document())
    pools.wait_status(phase="Paused", configured="1/2", ready="1/2")
    assert pools.wait_condition("Configured", "False", "MembersFollowing")["message"].endswith(f": {two.name}.")
    two.mount(pools.document())  # its engine has not come yet, and need not
    pools.wait_status(phase="Paused", configured="2/2", ready="2/2")
    told = pools.wait_condition("Ready", "False", "Paused")["message"]
    assert told == f"2 of 2 members are paused. {explain('paused')}"
    assert pools.kubectl("get", "kvp", NAME, "--no-headers").stdout.split()[:3] == [NAME, "Paused", "2/2"]
    assert ("Normal", "Paused") in pools.events()

    pools.patch({"paused": False, "tiers": {"memory": {"size": "5Mi"}}})
    wait_for("the document says so", lambda: pools.configuration()["arenaBytes"] == 5 * 2**20, SECONDS)
    for each in (one, two):
        each.mount(pools.document())
    pools.wait_status(phase="Ready", configured="2/2", ready="2/2")
    told = pools.wait_condition("Configured", "False", "NeedsNewPods")["message"]
    assert told.startswith(f"2 of 2 run with former values of tiers.memory.size: {one.name}, {two.name}. Make them ")
    pools.wait_event("NeedsNewPods")

    two.mount("{")
    pools.wait_status(phase="Degraded", configured="1/2", ready="2/2")
    told = pools.wait_condition("Ready", "False", "ConfigNotUsed")["message"]
    assert told.startswith(f"1 of 2: {two.name} (configuration is not JSON: ")
    pools.wait_event("ConfigNotUsed")
    two.mount(pools.document())
    pools.wait_status(phase="Ready", configured="2/2")
    # no pod is blamed for a pause
    assert {"EngineBare", "NotWarm"}.isdisjoint(reason for each in (one, two) for _, reason in pools.events(each.name))


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
