"""A StatefulSet's pod with a volume, whose agent has little memory beside its arena."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from replica import MIB

from cluster.engines import Member
from cluster.images import STANDIN
from cluster.kube import AGENT, wait_for
from cluster.standins import NAME, SMALL, StandIns, deployment
from kvpool_operator.desired.spaces import KEYS_SECRET

BESIDE = 128 * MIB  # of the agent's limit, beyond its arena
FLAT = 4 * MIB  # by which its own memory may grow
VOLUME = "kv"
# what the kernel's two ways of counting a group's memory call the bytes that processes have of their own, and the most
# that the group has had, which stands alone
STATISTICS = (
    "cd /sys/fs/cgroup; cat memory/memory.stat memory.stat memory/memory.max_usage_in_bytes memory.peak 2>/dev/null"
)
ANONYMOUS = ("total_rss", "anon")


class Memory(NamedTuple):
    """Bytes of the agent's container: those besides its arena and besides the pages of files, and the most of all."""

    anonymous: int
    most: int


@contextmanager
def volume(standins: StandIns, folder: Path) -> Iterator[None]:
    """The folder, of one node, as a volume that waits for the claim of the StatefulSet's first pod."""
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
            "claimRef": {"namespace": standins.namespace, "name": f"{VOLUME}-{NAME}-0"},
        },
    }
    standins.kubectl("apply", "-f", "-", stdin=json.dumps(made))
    try:
        yield
    finally:
        standins.kubectl("delete", "statefulset", "--all", "--wait=false")
        standins.kubectl("delete", "persistentvolume", standins.namespace, "--wait=false")


def start(
    standins: StandIns, *, row_bytes: int, rows: int, arena: int, disk: int, keys: bool, seconds: float = 0.0
) -> Member:
    """The pool and its one pod, ready. Sizes in bytes; disk: 0 for none; keys: whether its cache namespace has one,
    which seals what lies on the disk; seconds: that its engine takes to compute a token."""
    tiers: dict[str, Any] = {"memory": {"size": arena, "eviction": "LRU"}}
    if disk:
        tiers["disk"] = {"size": disk, "podVolume": VOLUME}
    spec = {
        **SMALL,
        "engine": {"hostPool": {"size": rows * row_bytes}},
        "tiers": tiers,
        "agent": {"resources": {"requests": {"cpu": "20m"}, "limits": {"memory": arena + BESIDE}}},
        "cacheNamespaces": [{"name": "all"}] if keys else [],
        "prewarm": {"maxBytes": 0},
        "loading": {"mode": "Always"},
    }
    standins.create_pool(
        {"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": {"name": NAME}, "spec": spec}
    )
    if keys:
        wait_for("its key", lambda: standins.core.read_namespaced_secret(KEYS_SECRET, standins.namespace).data, 60)
    options = ["--row-bytes", str(row_bytes), "--rows", str(rows), "--token-seconds", str(seconds)]
    standins.kubectl("apply", "-f", "-", stdin=json.dumps(_stateful_set(options)))
    (member,) = standins.wait_ready(1)
    if disk:
        sealed = wait_for("its disk", lambda: (d := member.status().disk).state == "ready" and d, 60).sealed
        assert sealed is keys
    return member


def _stateful_set(options: list[str]) -> dict[str, Any]:
    """Of one engine."""
    pod = deployment()["spec"]["template"]
    (engine,) = pod["spec"]["containers"]
    engine["command"] = [*STANDIN, *options]
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


def memory(standins: StandIns, member: Member) -> Memory:
    """As the kernel counts it now."""
    said = standins.kubectl("exec", member.pod.name, "-c", AGENT, "--", "sh", "-c", STATISTICS, check=False).stdout
    lines = [line.split() for line in said.splitlines()]
    (anonymous,) = [int(line[1]) for line in lines if line[0] in ANONYMOUS]
    (most,) = [int(line[0]) for line in lines if len(line) == 1]
    return Memory(anonymous, most)


def ends(standins: StandIns, member: Member) -> list[str]:
    """Why containers of the pod have ended so far, the one that only copies aside."""
    status = standins.core.read_namespaced_pod(member.pod.name, standins.namespace).status
    told = [*(status.init_container_statuses or []), *(status.container_statuses or [])]
    return [c.last_state.terminated.reason for c in told if c.last_state and c.last_state.terminated]
