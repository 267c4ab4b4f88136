"""What a kubelet makes of an engine that writes to its node's disk, as one does that downloads its model."""

import json

from cluster.chart import Chart
from cluster.kube import wait_for
from cluster.standins import StandIns, pod

MIB = 2**20
WRITTEN = 400  # MiB: more than kvpool's containers request of it
LIMIT = 64
OURS = 256  # of the agent, where there is a limit


def create(standins: StandIns, name: str, limits: dict[str, str], node: str = "") -> None:
    """A pod whose engine has these limits; node: empty where any will do."""
    document = pod(name)
    (engine,) = document["spec"]["containers"]
    engine["resources"]["limits"] = limits
    document["spec"] |= {"nodeName": node} if node else {}
    standins.core.create_namespaced_pod(standins.namespace, document)


def node_of(standins: StandIns, name: str) -> str:
    return str(standins.core.read_namespaced_pod(name, standins.namespace).spec.node_name)


def write(standins: StandIns, name: str) -> None:
    """The kubelet may end the engine before the last byte."""
    command = ("dd", "if=/dev/zero", "of=/var/tmp/model", "bs=1M", f"count={WRITTEN}")
    standins.kubectl("exec", name, "-c", "engine", "--", *command, check=False)


def measured(chart: Chart, standins: StandIns, name: str) -> int:
    """Bytes of the node's disk that the pod uses, by its kubelet's last measurement."""
    path = f"/api/v1/nodes/{node_of(standins, name)}/proxy/stats/summary"
    summary = json.loads(chart.kubectl("get", "--raw", path).stdout)
    wanted = {"name": name, "namespace": standins.namespace}
    found = [each for each in summary["pods"] if wanted.items() <= each["podRef"].items()]
    return sum(each.get("ephemeral-storage", {}).get("usedBytes", 0) for each in found)


def test_an_engine_that_writes_to_its_own_disk_is_held_to_no_limit_of_ours(chart: Chart, standins: StandIns) -> None:
    standins.declare()
    create(standins, "free", {})
    standins.wait_ready(1)
    write(standins, "free")
    wait_for("its kubelet knows", lambda: measured(chart, standins, "free") > WRITTEN * MIB, 120)

    # one that has a limit of its own is ended by the same kubelet, and only beyond that limit and the agent's together
    create(standins, "held", {"ephemeral-storage": f"{LIMIT}Mi"}, node_of(standins, "free"))
    standins.wait_ready(2)
    assert {tuple(names) for names in standins.containers().values()} == {("kvpool-client", "kvpool-agent")}
    write(standins, "held")
    read = standins.core.read_namespaced_pod
    wait_for("it is evicted", lambda: read("held", standins.namespace).status.reason == "Evicted", 120)
    told = read("held", standins.namespace).status.message
    assert told.rstrip(". ").endswith(f"exceeds the total limit of containers {LIMIT + OURS}Mi"), told
    (free,) = [member.pod for member in standins.members() if member.pod.name == "free"]
    assert (free.ready, free.restarts) == (True, 0)
    assert measured(chart, standins, "free") > WRITTEN * MIB
