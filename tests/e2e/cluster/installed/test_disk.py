"""The disk tier on a kubelet: a StatefulSet's volume under an agent that has little memory beside its arena."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from process_use import growth
from standin_engine import prompt

from cluster.chart import Chart
from cluster.engines import Member
from cluster.images import STANDIN
from cluster.kube import AGENT, wait_for
from cluster.standins import NAME, SMALL, Served, StandIns, ask, deployment
from kvpool_operator.desired.spaces import KEYS_SECRET

MIB = 2**20
ROW, BLOCKS = 256 << 10, 16
ROWS = 2 * BLOCKS
ARENA, BESIDE, DISK = 32 * MIB, 128 * MIB, 64 * MIB
TURNS = 10
PROMPTS = TURNS * ARENA // (BLOCKS * ROW)
VOLUME = "kv"
POOL = {
    "engine": {"hostPool": {"size": ROWS * ROW}},
    "tiers": {"memory": {"size": ARENA, "eviction": "LRU"}, "disk": {"size": DISK, "podVolume": VOLUME}},
    "agent": {"resources": {"requests": {"cpu": "20m"}, "limits": {"memory": ARENA + BESIDE}}},
    "cacheNamespaces": [{"name": "all"}],
    "prewarm": {"maxBytes": 0},
    "loading": {"mode": "Always"},
}
# what the kernel's two ways of counting a group's memory call the bytes that processes have of their own
STATISTICS = "cat /sys/fs/cgroup/memory/memory.stat /sys/fs/cgroup/memory.stat 2>/dev/null"
ANONYMOUS = ("total_rss", "anon")


@pytest.fixture
def volume(chart: Chart, standins: StandIns, tmp_path: Path) -> Iterator[Path]:
    """A folder of one node, as a volume that waits for the claim of the StatefulSet's first pod."""
    if not chart.provided.folder:
        pytest.skip("the disks of a named cluster are its owner's")
    tmp_path.chmod(0o755)
    folder = tmp_path / "volume"
    folder.mkdir()
    claim = {"namespace": standins.namespace, "name": f"{VOLUME}-{NAME}-0"}
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-0"]}]}]
    made = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": standins.namespace},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
            "claimRef": claim,
        },
    }
    chart.kubectl("apply", "-f", "-", stdin=json.dumps(made))
    yield folder
    standins.kubectl("delete", "statefulset", "--all", "--wait=false")
    chart.kubectl("delete", "persistentvolume", standins.namespace, "--wait=false")


def stateful_set() -> dict[str, Any]:
    """Of one engine, whose host pool has room for two prompts."""
    pod = deployment()["spec"]["template"]
    (engine,) = pod["spec"]["containers"]
    engine["command"] = [*STANDIN, "--row-bytes", str(ROW), "--rows", str(ROWS)]
    pod["spec"]["securityContext"] = {"fsGroup": 10001}
    pod["spec"]["terminationGracePeriodSeconds"] = 10
    request = {"requests": {"storage": "1Gi"}}
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": request}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": NAME},
        "spec": {
            "replicas": 1,
            "serviceName": NAME,
            "selector": {"matchLabels": {"app": NAME}},
            "template": pod,
            "volumeClaimTemplates": [{"metadata": {"name": VOLUME}, "spec": claim}],
        },
    }


def anonymous(standins: StandIns, member: Member) -> int:
    """Bytes that the agent's container has besides its arena, and besides the pages of files."""
    said = standins.kubectl("exec", member.pod.name, "-c", AGENT, "--", "sh", "-c", STATISTICS, check=False).stdout
    (found,) = [int(line.split()[1]) for line in said.splitlines() if line.split()[0] in ANONYMOUS]
    return found


def ends(standins: StandIns, member: Member) -> list[str]:
    """Why containers of the pod have ended so far, the one that only copies aside."""
    status = standins.core.read_namespaced_pod(member.pod.name, standins.namespace).status
    told = [*(status.init_container_statuses or []), *(status.container_statuses or [])]
    return [c.last_state.terminated.reason for c in told if c.last_state and c.last_state.terminated]


def quiet(member: Member) -> bool:
    """Whether all that two requests contained has been written, or was dropped."""
    status = member.status()
    gone = sum(n for word, n in status.counters.items() if word.startswith("disk_dropped_"))
    return status.disk.state == "ready" and status.transfers["disk_out"].blocks + gone >= status.hits.local_blocks


def churn(number: int) -> list[int]:
    return prompt(f"churn-{number}", BLOCKS)


def test_ten_arenas_of_churn_over_a_sealed_disk_end_no_container_and_a_new_pod_finds_its_volume(
    volume: Path, standins: StandIns
) -> None:
    standins.create_pool(
        {"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": {"name": NAME}, "spec": SMALL | POOL}
    )
    wait_for("its key", lambda: standins.core.read_namespaced_secret(KEYS_SECRET, standins.namespace).data, 60)
    standins.kubectl("apply", "-f", "-", stdin=json.dumps(stateful_set()))
    (member,) = standins.wait_ready(1)
    status = wait_for("a sealed disk", lambda: (s := member.status()).disk.state == "ready" and s, 60)
    assert status.disk.sealed
    used, loaded = [], 0
    for number in range(PROMPTS):
        assert ask(member.pod.address, churn(number)) == Served(computed=BLOCKS)
        if number < 2:
            continue
        # the host pool, with room for two, has this one no more: it comes from the arena, and goes to the disk
        served = ask(member.pod.address, churn(number - 2))
        assert served.computed + served.pool == BLOCKS  # on a node that is too busy, blocks may go before that
        loaded += served.pool
        if not number % 4:
            used.append(anonymous(standins, member))
    wait_for("what waits is written", lambda: quiet(member), 120)
    status = member.status()
    assert status.transfers["disk_out"].bytes > 4 * ARENA and loaded * ROW > 4 * ARENA, (loaded, status.counters)
    assert status.arena.evicted_blocks > (TURNS - 1) * ARENA // ROW
    assert status.counters["disk_evicted_blocks"] > 0 and ARENA < status.disk.used_bytes <= DISK
    assert ends(standins, member) == []
    assert growth(used[len(used) // 3 :]) < 4 * MIB, used

    standins.kubectl("delete", "pod", member.pod.name, "--wait=false")
    wait_for("another pod", lambda: [m for m in standins.members() if m.pod.uid != member.pod.uid], 120)
    (again,) = standins.wait_ready(1)
    found = wait_for("it is looked through", lambda: (s := again.status()).disk.state == "ready" and s, 120)
    assert found.counters["disk_recovered_blocks"] == found.disk.blocks == status.disk.blocks
    # the last ones that were written are served from it, and nobody else has been asked
    came = [ask(again.pod.address, churn(PROMPTS - 3 - back)).pool for back in range(4)]
    assert max(came) == BLOCKS, came
    moved = again.status().transfers
    assert moved["disk_in"].blocks >= BLOCKS and moved.keys() <= {"disk_in", "disk_out", "store_in"}
    assert ends(standins, again) == []
