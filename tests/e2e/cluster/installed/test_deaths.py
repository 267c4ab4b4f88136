"""Deaths of all kinds: of the controller, of pods, of a node. All of it heals, and nothing is left behind."""

import pytest

from cluster import provider
from cluster.chart import CONTROLLER, Chart
from cluster.kube import wait_for
from cluster.standins import NAME, SMALL, Served, StandIns, ask, wait_can_load

BLOCKS = 8
POOLS = 6
GONE_SECONDS = 120  # a grace period, and what a busy kubelet takes to see that containers have ended
LEAVES_NODES_ALONE = "the nodes of a named cluster are its owner's"


@pytest.fixture
def lost_node(chart: Chart) -> str:
    """Name of the node that the test is about to lose: the one without the controller, which Kubernetes would start
    elsewhere after five minutes. Tests with this fixture come last."""
    if not chart.provided.folder:
        pytest.skip(LEAVES_NODES_ALONE)
    (pod,) = chart.core.list_namespaced_pod(
        chart.namespace, label_selector="app.kubernetes.io/component=controller"
    ).items
    return "node-0" if pod.spec.node_name == "node-1" else "node-1"


def terminating(home: StandIns) -> list[str]:
    listed = home.core.list_namespaced_pod(home.namespace).items
    return [pod.metadata.name for pod in listed if pod.metadata.deletion_timestamp]


def test_a_controller_that_is_killed_while_it_makes_pools_makes_them_all(chart: Chart, standins: StandIns) -> None:
    def made() -> set[str]:
        return set(standins.kubectl("get", "cm,svc", "-o", "name").stdout.split())

    for n in range(POOLS):
        standins.create_pool({**pool_document(f"p{n}"), "spec": SMALL})
        if n in (0, POOLS // 2):
            wait_for("its first objects", lambda n=n: f"configmap/p{n}-kvpool" in made(), 60, every=0.02)
            chart.kubectl(
                "delete", "pod", "-l", "app.kubernetes.io/component=controller", "--force", "--grace-period=0"
            )
    wanted = {f"{kind}/p{n}-kvpool" for kind in ("configmap", "service") for n in range(POOLS)}
    wait_for("all objects", lambda: wanted <= made(), 60)
    (pod,) = wait_for("one controller", lambda: chart.pods("app.kubernetes.io/component=controller"), 30)
    wait_for("a ready controller", lambda: chart.deployment(CONTROLLER)["status"].get("readyReplicas") == 1, 60)
    # deleted pools take along what was made for them, also while nobody looks
    chart.scale_to(CONTROLLER, 0)
    try:
        standins.kubectl("delete", "kvp", "--all", "--timeout=20s")
        wait_for("nothing is left", lambda: not wanted & made(), 60)
    finally:
        chart.scale_to(CONTROLLER, 1)
    assert made() == {"configmap/kube-root-ca.crt"}
    assert pod.restarts == 0


def pool_document(name: str) -> dict[str, object]:
    return {"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": {"name": name}}


def test_pods_that_are_deleted_are_gone_soon_and_their_successors_warm(standins: StandIns) -> None:
    """With grace, without, and by force, after which nobody waits for their end."""
    members = standins.create(2)
    tokens = standins.heat("hot", BLOCKS)
    for turn, how in enumerate(((), ("--grace-period=0",), ("--grace-period=0", "--force")), start=1):
        kept, victim = members
        standins.kubectl("delete", "pod", victim.pod.name, "--wait=false", *how)
        (new,) = (m for m in standins.wait_ready(2, without={victim.pod.name}) if m.pod.name != kept.pod.name)
        assert (new.status().state, new.status().warm.loaded_blocks) == ("Ready(warm)", BLOCKS), how
        wait_can_load(new, tokens)
        assert ask(new.pod.address, tokens) == Served(pool=BLOCKS), how
        wait_for("the deleted pod is gone", lambda: not terminating(standins), GONE_SECONDS)
        standins.wait_status(phase="Ready", ready="2/2", warm=f"{min(turn, 2)}/2")
        members = [new, kept]  # the next victim is the other one


def test_a_drained_node_gives_its_pods_to_another_one_and_they_warm(chart: Chart, standins: StandIns) -> None:
    standins.create(2)
    standins.heat("hot", BLOCKS)
    on = {pod.name: node for pod, node in nodes(standins)}
    drained = next(iter(on.values()))
    moved = {name for name, node in on.items() if node == drained}
    try:
        standins.kubectl(
            "drain", drained, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=100s",
            "--pod-selector", f"app={NAME}",
        )  # fmt: skip
        members = standins.wait_ready(2, without=moved)
    finally:
        standins.kubectl("uncordon", drained)
    assert drained not in {node for _, node in nodes(standins)}
    if len(moved) == 1:  # else nobody was left to warm from
        (new,) = (m for m in members if m.pod.name not in on)
        assert (new.status().state, new.status().warm.loaded_blocks) == ("Ready(warm)", BLOCKS)
    wait_for("nothing sticks", lambda: not terminating(standins), GONE_SECONDS)
    standins.wait_status(phase="Ready", ready="2/2")


def test_a_node_that_dies_takes_its_pods_along_and_the_pool_heals(
    chart: Chart, standins: StandIns, lost_node: str
) -> None:
    standins.create(3, spread=True)
    tokens = standins.heat("hot", BLOCKS)
    on = {pod.name: node for pod, node in nodes(standins)}
    lost = {name for name, node in on.items() if node == lost_node}
    left = set(on) - lost
    assert lost and left, f"one node has all pods: {on}"
    provider.kill_node(chart.provided, int(lost_node.removeprefix("node-")))
    # the status tells of the silent ones before Kubernetes gives them up, and of nobody silent afterwards
    status = standins.wait_status(phase="Degraded")
    told = next(c for c in status["conditions"] if c["type"] == "AgentsReady")
    assert told["reason"] in ("AgentsUnreachable", "MembersStarting")
    members = standins.wait_ready(3, without=lost)
    assert lost_node not in {node for pod, node in nodes(standins) if pod.name in {m.pod.name for m in members}}
    new = [m for m in members if m.pod.name not in left]
    assert [(m.status().state, m.status().warm.loaded_blocks) for m in new] == [("Ready(warm)", BLOCKS)] * len(lost)
    assert [ask(m.pod.address, tokens).computed for m in members] == [0, 0, 0]
    standins.wait_status(phase="Ready", ready="3/3")
    # nobody confirms the end of a dead node's pods; as ever in Kubernetes, a person has to
    standins.kubectl("delete", "pods", "--grace-period=0", "--force", *lost, "--ignore-not-found")
    wait_for("nothing sticks", lambda: not terminating(standins), GONE_SECONDS)


def nodes(home: StandIns) -> "list[tuple[object, str]]":
    """Living pods of the pool with the nodes they are on."""
    listed = home.core.list_namespaced_pod(home.namespace, label_selector=f"app={NAME}").items
    living = [pod for pod in listed if pod.metadata.deletion_timestamp is None]
    return [(pod.metadata, pod.spec.node_name) for pod in living]
