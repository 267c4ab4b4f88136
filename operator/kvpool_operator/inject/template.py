"""The injector: a pod template and a pool in, the template with kvpool's parts or a reason out.

It never changes its input, and decides everything from it, so the same template gives the same result
wherever it is called. Volumes of ours that may vanish are optional: a lost ConfigMap must not keep a pod from
starting.
"""

import copy
import hashlib
from dataclasses import dataclass
from typing import Any

from kvpool_contract.config import encode_config
from kvpool_contract.names import CONFIG_HASH_ANNOTATION, POOL_LABEL, pool_object_name
from kvpool_operator.desired.objects import agent_config
from kvpool_operator.desired.pool import KVCachePool, PoolError
from kvpool_operator.inject import containers
from kvpool_operator.inject.engine import (
    CLIENT_CONFIG_VARIABLE,
    Refused,
    client_config,
    find_engine,
    join_engine,
)
from kvpool_operator.inject.revision import template_hash
from kvpool_operator.inject.shm import room_for_host_pool

OWN_PREFIX = "kvpool-"
CONFIG_HASH_LENGTH = 12


@dataclass(frozen=True)
class Settings:
    """`image`: the agent's image, in place of the pool's own."""

    image: str = ""


@dataclass(frozen=True)
class Injected:
    """The template with kvpool's parts, and the name of the container that was taken for the engine's."""

    template: dict[str, Any]
    engine: str


@dataclass(frozen=True)
class Skip:
    """The template was left alone; `reason` is a word of the contract's table."""

    reason: str


def inject(template: dict[str, Any], pool: KVCachePool, settings: Settings) -> Injected | Skip:
    """Adds kvpool's parts to a pod template; raises PoolError only where the pool names no image."""
    image = settings.image or pool.spec.agent.image
    if not image:
        raise PoolError("pool field spec.agent.image: it is empty; name the agent's image there or with --image")
    result = copy.deepcopy(template)
    try:
        engine = _join(result, pool, image)
    except Refused as refused:
        return Skip(refused.reason)
    return Injected(result, engine)


def _join(template: dict[str, Any], pool: KVCachePool, image: str) -> str:
    spec = template.get("spec") or {}
    metadata = template["metadata"] = template.get("metadata") or {}
    labels = metadata["labels"] = metadata.get("labels") or {}
    annotations = metadata["annotations"] = metadata.get("annotations") or {}
    own, users = pool.metadata.name, spec.get("containers") or []

    if _has_own_parts(spec):
        raise Refused("already_injected")
    if labels.get(POOL_LABEL, own) != own:
        raise Refused("other_pool")
    if spec.get("hostNetwork"):
        raise Refused("host_network")
    engine = find_engine(users, pool.spec.engine.container)

    revision = template_hash(spec, client_config(pool))
    guaranteed = containers.is_guaranteed([*users, *(spec.get("initContainers") or [])])
    spec["volumes"] = [*(spec.get("volumes") or []), *containers.volumes(pool_object_name(own))]
    room_for_host_pool(spec, engine, int(pool.spec.engine.host_pool.size))
    join_engine(engine, pool)
    spec["initContainers"] = [
        *(spec.get("initContainers") or []),
        containers.client_container(image, guaranteed=guaranteed),
        containers.agent_container(pool, image, revision, guaranteed=guaranteed),
    ]
    labels[POOL_LABEL] = own
    annotations[CONFIG_HASH_ANNOTATION] = config_hash(pool)
    return str(engine.get("name", ""))


def config_hash(pool: KVCachePool) -> str:
    """Changes with the agents' configuration, so that a change of the pool rolls its pods."""
    return hashlib.sha256(encode_config(agent_config(pool)).encode()).hexdigest()[:CONFIG_HASH_LENGTH]


def _has_own_parts(spec: dict[str, Any]) -> bool:
    """Containers and volumes by our prefix, or the plug-in's variable: anything of ours would be there
    twice."""
    users, inits = spec.get("containers") or [], spec.get("initContainers") or []
    named = [*inits, *users, *(spec.get("volumes") or [])]
    return any(str(part.get("name", "")).startswith(OWN_PREFIX) for part in named) or any(
        entry.get("name") == CLIENT_CONFIG_VARIABLE for container in users for entry in container.get("env") or []
    )
