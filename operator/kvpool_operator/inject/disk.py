"""The disk tier's volume: one made for the pod, or one that the pod has and that survives it.

An emptyDir is on the node's own storage and counts as the agent's ephemeral storage: the kubelet evicts a pod that uses
more of it than the volume's size, or than its containers' limits. The agent uses nine tenths of the size. A volume that
the pod does not have is not mounted, since the API server would refuse the pod: the agent starts without, and says so.
"""

from collections.abc import Iterable
from typing import Any

from kvpool_operator.desired.objects import DISK_DIR
from kvpool_operator.desired.pool import KVCachePool
from kvpool_operator.desired.quantity import format_quantity

DISK_VOLUME = "kvpool-disk"


def disk_volumes(pool: KVCachePool) -> list[dict[str, Any]]:
    """What is added to the pod's volumes: at most one."""
    disk = pool.spec.tiers.disk
    if not disk.size or disk.pod_volume:
        return []
    size = format_quantity(int(disk.size))
    if not disk.storage_class_name:
        return [{"name": DISK_VOLUME, "emptyDir": {"sizeLimit": size}}]
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": disk.storage_class_name,
        "resources": {"requests": {"storage": size}},
    }
    return [{"name": DISK_VOLUME, "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}]


def disk_mounts(pool: KVCachePool, named: Iterable[str]) -> list[dict[str, Any]]:
    """What is added to the agent's mounts: at most one. named: the volumes that the pod has of its own."""
    disk = pool.spec.tiers.disk
    if disk.pod_volume:
        return [{"name": disk.pod_volume, "mountPath": DISK_DIR}] if disk.pod_volume in named else []
    return [{"name": volume["name"], "mountPath": DISK_DIR} for volume in disk_volumes(pool)]


def ephemeral_bytes(pool: KVCachePool) -> int:
    """What it takes of the node's own storage."""
    return sum(int(pool.spec.tiers.disk.size) for volume in disk_volumes(pool) if "emptyDir" in volume)
