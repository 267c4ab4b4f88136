"""What goes on while a part of the operator is away, and what is told once it is back."""

import time

import pytest
from kubernetes import client
from standin_engine import prompt

from cluster import provider
from cluster.chart import CONTROLLER, NAMESPACE, RELEASE, WEBHOOK, Chart
from cluster.engines import Member, kvpool
from cluster.kube import wait_for
from cluster.standins import Served, StandIns, ask, deployment, wait_known
from kvpool_contract.names import WORKER_PORT

BLOCKS = 8
AWAY_SECONDS = 30
JOINED = ["kvpool-client", "kvpool-agent"]


def test_without_the_controller_a_whole_generation_of_pods_joins_and_warms(chart: Chart, standins: StandIns) -> None:
    old = standins.create(2)
    tokens = standins.heat("hot", BLOCKS)
    standins.wait_status(ready="2/2", warm="0/2")
    chart.scale_to(CONTROLLER, 0)
    try:
        standins.apply(2, annotations={"example.test/revision": "2"})
        new = standins.wait_ready(2, without={member.pod.name for member in old})
        assert [m.status().state for m in new] == ["Ready(warm)", "Ready(warm)"]
        assert [m.status().warm.loaded_blocks for m in new] == [BLOCKS, BLOCKS]
        assert [ask(m.pod.address, tokens).computed for m in new] == [0, 0]
        # a replica more, from those that never knew a controller
        standins.scale("chat", 3)
        (third,) = (m for m in standins.wait_ready(3) if m.pod.name not in {n.pod.name for n in new})
        assert (third.status().state, third.status().warm.loaded_blocks) == ("Ready(warm)", BLOCKS)
        assert standins.pool_status()["warm"] == "0/2"  # nobody has written it meanwhile
        assert problems(standins, 4) == ["No controller is ready: new pools get no configuration and no status."]
    finally:
        chart.scale_to(CONTROLLER, 1)
    standins.wait_status(phase="Ready", ready="3/3", warm="3/3")


def test_without_the_webhook_labelled_pods_start_bare_by_name_and_join_when_they_are_made_anew(
    chart: Chart, standins: StandIns
) -> None:
    (first,) = standins.create(1)
    tokens = standins.heat("hot", BLOCKS)
    required = pod("required", {"kvpool.io/require": "true"})
    chart.scale_to(WEBHOOK, 0)
    try:
        with pytest.raises(client.ApiException, match=r"failed calling webhook .*require\.kvpool\.io"):
            standins.core.create_namespaced_pod(standins.namespace, required)
        standins.scale("chat", 2)
        (bare,) = (m for m in standins.wait_ready(2) if m.pod.name != first.pod.name)
        assert standins.containers() == {first.pod.name: JOINED, bare.pod.name: []}
        assert ask(bare.pod.address, tokens) == Served(computed=BLOCKS)
        status = standins.wait_status(phase="Degraded", ready="1/2")
        told = next(c for c in status["conditions"] if c["type"] == "AgentsReady")
        assert (told["status"], told["reason"]) == ("False", "NotInjected")
        assert bare.pod.name in told["message"] and "kvpool inject" in told["message"]
        # and whoever asks is told why
        assert problems(standins, 4) == [
            "No webhook is ready: labelled pods start bare.",
            f"A labelled pod in namespace {standins.namespace} is not looked at: the webhook does not answer the API "
            f"server in time, or the chart leaves the namespace out.",
        ]
        tested = chart.helm("test", RELEASE, "-n", NAMESPACE, "--logs", check=False)
        assert tested.returncode != 0 and "The webhook was not asked about this pod" in tested.stdout
        why, *_ = problems(standins, 4, "--pod", bare.pod.name)
        assert why == f"{bare.pod.name} was never looked at."
        assert "ok       Made anew it would join pool chat" in check(standins, 4, "--pod", bare.pod.name)
        assert f"AgentsReady: 1 of 2: {bare.pod.name}." in problems(standins, 4, "--pool", "chat")
    finally:
        chart.scale_to(WEBHOOK, 2)
    # the webhook's Service is known to the API server a moment after its pods are ready
    wait_for("pods join", lambda: joins(standins), 60)
    standins.kubectl("delete", "pod", bare.pod.name)
    (again,) = (m for m in standins.wait_ready(2, without={bare.pod.name}) if m.pod.name != first.pod.name)
    assert standins.containers() == {first.pod.name: JOINED, again.pod.name: JOINED}
    assert (again.status().state, again.status().warm.loaded_blocks) == ("Ready(warm)", BLOCKS)
    standins.wait_status(phase="Ready", ready="2/2")
    assert "Succeeded" in chart.helm("test", RELEASE, "-n", NAMESPACE).stdout
    assert problems(standins, 0) == problems(standins, 0, "--pod", again.pod.name) == []


def test_an_api_server_that_is_away_for_half_a_minute_is_missed_by_nobody_who_runs(
    chart: Chart, standins: StandIns
) -> None:
    if not chart.provided.folder:
        pytest.skip("the API server of a named cluster is its owner's")
    members = standins.create(2, tolerations=[])
    standins.heat("hot", BLOCKS)
    incarnations = [member.status().incarnation for member in members]
    with provider.api_server_away(chart.provided):
        until = time.monotonic() + AWAY_SECONDS
        turn = 0
        while time.monotonic() < until or turn < 2:
            holder, other = members if turn % 2 else reversed(members)
            tokens = prompt(f"away-{turn}", BLOCKS)
            held, known = gauge(holder, "kvpool_arena_blocks"), gauge(other, "kvpool_known_heads")
            assert ask(holder.pod.address, tokens) == Served(computed=BLOCKS)
            wait_for("its blocks", lambda m=holder, n=held: gauge(m, "kvpool_arena_blocks") >= n + BLOCKS, 30)
            wait_for("its head", lambda m=other, n=known: gauge(m, "kvpool_known_heads") > n, 30)
            wait_known(other, tokens)
            assert ask(other.pod.address, tokens) == Served(pool=BLOCKS)
            turn += 1
            time.sleep(1)
    # what nobody could be told meanwhile is told, and nothing has been started anew
    wait_for("new pods join", lambda: joins(standins), 60)
    standins.scale("chat", 3)
    (third,) = (m for m in standins.wait_ready(3) if m.pod.name not in {member.pod.name for member in members})
    assert third.status().state == "Ready(warm)"
    assert [member.status().incarnation for member in members] == incarnations
    assert [m.pod for m in standins.members() if m.pod.restarts] == []
    assert {pod.restarts for pod in chart.pods("app.kubernetes.io/name=kvpool")} == {0}
    standins.wait_status(phase="Ready", ready="3/3", warm="1/3")


def gauge(member: Member, name: str) -> float:
    """Of the agent, read at the pod's address: a status would come through the API server."""
    return member.metric(name, WORKER_PORT)


def check(standins: StandIns, code: int, *what: str) -> str:
    """What `kvpool check` says, ending with this code."""
    config = str(standins.provided.kubeconfig)
    return kvpool("check", "-n", standins.namespace, "--kubeconfig", config, *what, code=code)


def problems(standins: StandIns, code: int, *what: str) -> list[str]:
    """First sentences of the problems."""
    lines = [line.partition(" ") for line in check(standins, code, *what).splitlines()]
    return [rest.strip().split(". ")[0].rstrip(".") + "." for verdict, _, rest in lines if verdict == "problem"]


def pod(name: str, annotations: dict[str, str]) -> dict[str, object]:
    template = deployment()["spec"]["template"]
    metadata = {**template["metadata"], "name": name, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def joins(standins: StandIns) -> bool:
    """Whether a pod would be joined now."""
    return [c["name"] for c in standins.dry_pod(pod("dry", {}))["spec"].get("initContainers", [])] == JOINED
