"""What goes on while a part of the operator is away, and what is told once it is back."""

import time
from collections.abc import Iterator

import pytest
from kubernetes import client
from standin_engine import prompt

from cluster import provider
from cluster.chart import CONTROLLER, NAMESPACE, RELEASE, WEBHOOK, Chart
from cluster.engines import Member, kvpool
from cluster.installed.conftest import namespace
from cluster.kube import wait_for
from cluster.standins import Served, StandIns, ask, pod, wait_can_load, wait_known
from kvpool_contract.names import WORKER_PORT

BLOCKS = 8
AWAY_SECONDS = 30
JOINED = ["kvpool-client", "kvpool-agent"]


@pytest.fixture(scope="module")
def pool(chart: Chart, request: pytest.FixtureRequest) -> Iterator[StandIns]:
    """Two ready members, with which each of these tests begins. Nodes of which nothing is heard keep their pods."""
    with namespace(chart, request) as home:
        home.create(2, tolerations=[])
        yield home


def fewer(pool: StandIns) -> None:
    pool.scale("chat", 2)
    pool.wait_ready(2)
    pool.wait_status(ready="2/2")


def test_without_the_controller_a_whole_generation_of_pods_joins_and_warms(chart: Chart, pool: StandIns) -> None:
    old, tokens = pool.members(), pool.heat("hot", BLOCKS)
    pool.wait_status(ready="2/2", warm="0/2")
    chart.scale_to(CONTROLLER, 0)
    try:
        pool.apply(2, annotations={"example.test/revision": "2"}, tolerations=[])
        new = pool.wait_ready(2, without={member.pod.name for member in old})
        assert [m.status().state for m in new] == ["Ready(warm)", "Ready(warm)"]
        assert [m.status().warm.loaded_blocks for m in new] == [BLOCKS, BLOCKS]
        assert [ask(m.pod.address, tokens).computed for m in new] == [0, 0]
        # a replica more, from those that never knew a controller
        pool.scale("chat", 3)
        (third,) = (m for m in pool.wait_ready(3) if m.pod.name not in {n.pod.name for n in new})
        assert (third.status().state, third.status().warm.loaded_blocks) == ("Ready(warm)", BLOCKS)
        assert pool.pool_status()["warm"] == "0/2"  # nobody has written it meanwhile
        assert problems(pool, 4) == ["No controller is ready: new pools get no configuration and no status."]
    finally:
        chart.scale_to(CONTROLLER, 1)
    pool.wait_status(phase="Ready", ready="3/3", warm="3/3")
    fewer(pool)


def test_without_the_webhook_labelled_pods_start_bare_by_name_and_join_when_they_are_made_anew(
    chart: Chart, pool: StandIns
) -> None:
    joined = {member.pod.name: JOINED for member in pool.members()}
    tokens = pool.heat("required", BLOCKS)
    required = pod("required", annotations={"kvpool.io/require": "true"})
    chart.scale_to(WEBHOOK, 0)
    try:
        with pytest.raises(client.ApiException, match=r"failed calling webhook .*require\.kvpool\.io"):
            pool.core.create_namespaced_pod(pool.namespace, required)
        pool.scale("chat", 3)
        (bare,) = (m for m in pool.wait_ready(3) if m.pod.name not in joined)
        assert pool.containers() == {**joined, bare.pod.name: []}
        assert ask(bare.pod.address, tokens) == Served(computed=BLOCKS)
        status = pool.wait_status(phase="Degraded", ready="2/3")
        told = next(c for c in status["conditions"] if c["type"] == "AgentsReady")
        assert (told["status"], told["reason"]) == ("False", "NotInjected")
        assert bare.pod.name in told["message"] and "kvpool inject" in told["message"]
        # and whoever asks is told why
        assert problems(pool, 4) == [
            "No webhook is ready: labelled pods start bare.",
            f"A labelled pod in namespace {pool.namespace} is not looked at: the webhook does not answer the API "
            f"server in time, or the chart leaves the namespace out.",
        ]
        tested = chart.helm("test", RELEASE, "-n", NAMESPACE, "--logs", check=False)
        assert tested.returncode != 0 and "The webhook was not asked about this pod" in tested.stdout
        why, *_ = problems(pool, 4, "--pod", bare.pod.name)
        assert why == f"{bare.pod.name} was never looked at."
        assert "ok       Made anew it would join pool chat" in check(pool, 4, "--pod", bare.pod.name)
        assert f"AgentsReady: 1 of 3: {bare.pod.name}." in problems(pool, 4, "--pool", "chat")
    finally:
        chart.scale_to(WEBHOOK, 2)
    # the webhook's Service is known to the API server a moment after its pods are ready
    wait_for("pods join", lambda: joins(pool), 60)
    pool.kubectl("delete", "pod", bare.pod.name)
    (again,) = (m for m in pool.wait_ready(3, without={bare.pod.name}) if m.pod.name not in joined)
    assert pool.containers() == {**joined, again.pod.name: JOINED}
    warm = again.status().warm
    assert again.status().state == "Ready(warm)" and warm.loaded_blocks == warm.planned_blocks >= BLOCKS
    wait_can_load(again, tokens)
    assert ask(again.pod.address, tokens) == Served(pool=BLOCKS)
    pool.wait_status(phase="Ready", ready="3/3")
    assert "Succeeded" in chart.helm("test", RELEASE, "-n", NAMESPACE).stdout
    assert problems(pool, 0) == problems(pool, 0, "--pod", again.pod.name) == []
    fewer(pool)


def test_an_api_server_that_is_away_for_half_a_minute_is_missed_by_nobody_who_runs(
    chart: Chart, pool: StandIns
) -> None:
    if not chart.provided.folder:
        pytest.skip("the API server of a named cluster is its owner's")
    members = pool.members()
    pool.heat("before", BLOCKS)
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
    wait_for("new pods join", lambda: joins(pool), 60)
    pool.scale("chat", 3)
    (third,) = (m for m in pool.wait_ready(3) if m.pod.name not in {member.pod.name for member in members})
    assert third.status().state == "Ready(warm)"
    assert [member.status().incarnation for member in members] == incarnations
    assert [m.pod for m in pool.members() if m.pod.restarts] == []
    assert {pod.restarts for pod in chart.pods("app.kubernetes.io/name=kvpool")} == {0}
    warm = [member.status().state for member in [*members, third]].count("Ready(warm)")
    pool.wait_status(phase="Ready", ready="3/3", warm=f"{warm}/3")


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


def joins(standins: StandIns) -> bool:
    """Whether a pod would be joined now."""
    return [c["name"] for c in standins.dry_pod(pod("dry"))["spec"].get("initContainers", [])] == JOINED
