"""The engine's shared memory, where its host pool lies: a memory volume with room for it.

A container's own /dev/shm has 64 MiB. A memory volume that the user has put there is enlarged, never
replaced: the engine's workers use it too, so what it had before stays on top of the host pool.
"""

import posixpath
from typing import Any

from kvpool_operator.desired.quantity import format_quantity, parse_quantity
from kvpool_operator.inject.edits import Edits
from kvpool_operator.inject.refusal import Refused

SHM = "/dev/shm"
SHM_VOLUME = "kvpool-shm"
BESIDES_HOST_POOL = 64 * 2**20


def room_for_host_pool(edits: Edits, engine: dict[str, Any], host_pool: int) -> None:
    """Gives the engine a memory volume at /dev/shm with room for `host_pool` bytes; raises Refused."""
    needed = host_pool + BESIDES_HOST_POOL
    mounts = engine.get("volumeMounts") or []
    mount = next((m for m in mounts if posixpath.normpath(m.get("mountPath", "")) == SHM), None)
    if mount is None:
        volume = {"name": SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": format_quantity(needed)}}
        edits.add(("spec", "volumes"), volume)
        edits.add(("spec", "containers", engine["name"], "volumeMounts"), {"name": SHM_VOLUME, "mountPath": SHM})
        return
    volumes = edits.template["spec"].get("volumes") or []
    source = next((v.get("emptyDir") for v in volumes if v.get("name") == mount.get("name")), None)
    if not source or source.get("medium") != "Memory" or mount.get("readOnly"):
        raise Refused("shm_not_memory")
    if "sizeLimit" in source and (size := parse_quantity(source["sizeLimit"])) < needed:
        path = ("spec", "volumes", mount["name"], "emptyDir", "sizeLimit")
        edits.set(path, format_quantity(max(needed, size + host_pool)))
