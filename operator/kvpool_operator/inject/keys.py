"""The keys of cache namespaces in a pod: mounted into the agent alone, and only those that its labels give it.

A key that is not there yet comes later, and one that goes stays as it was: the volume's sources are optional, so no
lost Secret keeps a pod from starting.
"""

from collections.abc import Mapping
from typing import Any

from kvpool_contract.names import CACHE_NAMESPACES_VARIABLE
from kvpool_contract.tenants import KEYS_FOLDER
from kvpool_operator.desired.pool import KVCachePool
from kvpool_operator.desired.spaces import held_by, key_sources
from kvpool_operator.inject.edits import Edits

KEYS_VOLUME = "kvpool-keys"


def mount_keys(edits: Edits, agent: dict[str, Any], pool: KVCachePool, labels: Mapping[str, str]) -> None:
    """Gives the agent's container the keys of a pod with these labels; nothing where the pool has none."""
    spec = pool.spec
    held = held_by(spec.cache_namespaces, labels)
    if not held:
        return
    sources = key_sources(pool.metadata.name, held, spec.gateway_key_secret_ref)
    edits.add(("spec", "volumes"), {"name": KEYS_VOLUME, "projected": {"sources": sources}})
    agent["volumeMounts"].append({"name": KEYS_VOLUME, "mountPath": KEYS_FOLDER, "readOnly": True})
    agent["env"].append({"name": CACHE_NAMESPACES_VARIABLE, "value": ",".join(space.name for space in held[1:])})
