"""`tiers`: where an agent keeps blocks, in its arena and on a volume, how many bytes of each, and what makes room."""

from typing import Annotated, Literal

import msgspec

from kvpool_contract.config import DEFAULT_EVICTION, DEFAULT_OWNED_PERCENT
from kvpool_operator.desired.parts import GIB, MIB, Bytes, Part, PoolError, field

EXCLUDED = "storageClassName and podVolume exclude each other; set one of them"
NO_SIZE = "storageClassName claims a volume without size; set size"


class MemoryTier(Part, frozen=True):
    """The arena: the agent's host tier in shared memory."""

    size: Annotated[
        Bytes,
        field(
            "Hard limit of bytes. The agent's container asks for these and 512Mi. Pods that run keep the arena "
            "that they have.",
            least=MIB,
        ),
    ] = Bytes(8 * GIB)
    owned_percent: Annotated[
        int,
        field(
            "Percent of the arena that blocks computed beside the agent keep from copies of other members' blocks; the "
            "rest is kept for copies. Either uses what the other leaves free.",
            ge=0,
            le=100,
        ),
    ] = DEFAULT_OWNED_PERCENT
    huge_pages: Annotated[
        bool,
        field(
            "Ask the kernel for transparent huge pages for the arena. The node must give them to shared memory: its "
            "transparent_hugepage/shmem_enabled has to be advise. What was obtained is in the agents' status."
        ),
    ] = False
    eviction: Annotated[
        Literal["GDSF", "LRU", "S3FIFO"],
        field(
            "Which block makes room. GDSF: the one in the fewest requests, four counting as many, lately; LRU: the one "
            "not used for longest; S3FIFO: newcomers that no second request contains leave soon.",
        ),
    ] = DEFAULT_EVICTION


class DiskTier(Part, frozen=True):
    """Files on a volume: blocks that two requests contained outlive their place in the arena, and the agent's
    container. The volume is one of the pod's own, one claimed for each pod, or else an emptyDir on the node. Blocks of
    cacheNamespaces are sealed by AES-256-GCM under their keys; without any, they lie there in clear."""

    size: Annotated[
        Bytes,
        field(
            "Bytes of the volume; the tier takes nine tenths of them. 0: no disk tier or, with podVolume, the whole "
            "volume. An emptyDir of this size is added to what the agent requests of ephemeral-storage.",
            least=0,
        ),
    ] = Bytes(0)
    storage_class_name: Annotated[
        str,
        field("A volume of this class is claimed for each pod and goes with it. It needs a size.", max_length=253),
    ] = ""
    pod_volume: Annotated[
        str,
        field(
            "Name of a volume of the pod that the tier uses, such as a StatefulSet's claim: it may survive the pod. No "
            "two pods may share it.",
            max_length=63,
        ),
    ] = ""

    @property
    def wanted(self) -> bool:
        return bool(self.size or self.pod_volume)


class Tiers(Part, frozen=True):
    """Where an agent keeps blocks."""

    memory: MemoryTier = msgspec.field(default_factory=MemoryTier)
    disk: DiskTier = msgspec.field(default_factory=DiskTier)


def check_disk(disk: DiskTier) -> None:
    """Raises PoolError."""
    if disk.storage_class_name and disk.pod_volume:
        raise PoolError(f"pool field spec.tiers.disk: {EXCLUDED}")
    if disk.storage_class_name and not disk.size:
        raise PoolError(f"pool field spec.tiers.disk: {NO_SIZE}")
