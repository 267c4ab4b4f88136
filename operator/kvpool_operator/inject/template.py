"""The injector: a pod template and a pool in, the template with kvpool's parts or a reason out.

It never changes its input, and decides everything from it, so the same template gives the same result
wherever it is called. It begins by undoing what it may have done to the template before, so calling it again
changes nothing. Volumes of ours that may vanish are optional: a lost ConfigMap must not keep a pod from
starting.
"""

import copy
from dataclasses import dataclass
from typing import Any

from kvpool_contract.config import digest_of, encode_fixed
from kvpool_contract.names import CONFIG_HASH_ANNOTATION, ORIGINALS_ANNOTATION, POOL_LABEL
from kvpool_operator.desired.objects import agent_config
from kvpool_operator.desired.pool import KVCachePool, PoolError
from kvpool_operator.inject import containers, resources
from kvpool_operator.inject.edits import Edits, UnreadableRecordError, undo
from kvpool_operator.inject.engine import client_config, find_engine, join_engine, refuse_engine, refuse_mounts
from kvpool_operator.inject.eviction import let_volumes_go
from kvpool_operator.inject.grace import time_to_hand_over
from kvpool_operator.inject.keys import mount_keys
from kvpool_operator.inject.meshes import exclude_ports
from kvpool_operator.inject.obstacles import refuse_pod
from kvpool_operator.inject.rdma import lock_memory
from kvpool_operator.inject.refusal import Refused
from kvpool_operator.inject.revision import template_hash
from kvpool_operator.inject.shm import room_for_host_pool
from kvpool_operator.inject.start import find_plugin

MAX_ANNOTATIONS = 256 * 2**10  # the API server's bound on names and values together


@dataclass(frozen=True)
class Settings:
    """`image`: the agent's image, in place of the pool's own. `default_image`: where the pool names none.
    `kubernetes`: version of the oldest node, None where nobody knows it. `claims`: volumes that each pod gets beside
    those of its template, as a StatefulSet's do. `privileged`: whether the pod's namespace is known to let it have any
    capability."""

    image: str = ""
    default_image: str = ""
    kubernetes: tuple[int, int] | None = None
    claims: frozenset[str] = frozenset()
    privileged: bool = False


@dataclass(frozen=True)
class Injected:
    """The template with kvpool's parts, and the name of the container that was taken for the engine's. `withheld`: why
    the agent is not given what the pool asks for beyond that, a word of the contract's table, or empty."""

    template: dict[str, Any]
    engine: str
    withheld: str = ""


@dataclass(frozen=True)
class Skip:
    """The template was left alone; `reason` is a word of the contract's table."""

    reason: str


def inject(template: dict[str, Any], pool: KVCachePool, settings: Settings) -> Injected | Skip:
    """Adds kvpool's parts to a pod template; raises PoolError only where nobody names an image, QuantityError where
    a quantity of the template is none."""
    image = settings.image or pool.spec.agent.image or settings.default_image
    if not image:
        raise PoolError("pool field spec.agent.image: it is empty; name the agent's image there or with --image")
    result, before = _restored(template)
    try:
        refuse_pod(result, pool.metadata.name, settings.kubernetes)
        engine = find_engine(result["spec"].get("containers") or [], pool.spec.engine.container, before)
        refuse_engine(engine, pool)
        refuse_mounts(engine)
        withheld = _join(Edits(result), engine, pool, image, settings)
    except Refused as refused:
        return Skip(refused.reason)
    return Injected(result, str(engine["name"]), withheld)


def restore(template: dict[str, Any]) -> dict[str, Any]:
    """The template as it was before it was injected; one that was not comes back equal."""
    return _restored(template)[0]


def is_injected(template: dict[str, Any]) -> bool:
    """Whether the template carries kvpool's parts together with the record of them."""
    return ORIGINALS_ANNOTATION in ((template.get("metadata") or {}).get("annotations") or {})


def _restored(template: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Also the name of the engine's container, where the template was injected before."""
    result = copy.deepcopy(template)
    result["spec"] = result.get("spec") or {}
    annotations = (result.get("metadata") or {}).get("annotations") or {}
    record = annotations.pop(ORIGINALS_ANNOTATION, None)
    if record is None:
        return result, ""
    try:
        return result, undo(result, record)
    except UnreadableRecordError:
        return result, ""  # what it stood for is found by its names, and refused


def _join(edits: Edits, engine: dict[str, Any], pool: KVCachePool, image: str, settings: Settings) -> str:
    """Why something is withheld, or empty. Raises Refused."""
    spec, own = edits.template["spec"], pool.metadata.name
    host_pool = int(pool.spec.engine.host_pool.size)
    revision = template_hash(spec, client_config(pool))
    for path in (("metadata",), ("metadata", "labels"), ("metadata", "annotations")):
        edits.collection(*path, kind=dict)
    bounds = resources.bounds_of(spec)
    as_root = (spec.get("securityContext") or {}).get("runAsUser") == 0
    client = containers.client_container(image, bounds, as_root=as_root)
    named = settings.claims | {volume.get("name") for volume in spec.get("volumes") or []}
    agent = containers.agent_container(pool, image, revision, named, bounds, as_root=as_root)
    withheld = lock_memory(agent, pool, spec, privileged=settings.privileged)
    for volume in containers.volumes(pool):
        edits.add(("spec", "volumes"), volume)
    mount_keys(edits, agent, pool, edits.template["metadata"]["labels"])
    room_for_host_pool(edits, engine, host_pool)
    find_plugin(edits, engine)
    join_engine(edits, engine, pool)
    added = host_pool if pool.spec.engine.host_pool.adjust_resources else 0
    resources.raise_engine(edits, engine, added)
    resources.raise_pod(edits, agent["resources"], added)
    time_to_hand_over(edits, pool.spec.drain.max_seconds)
    for container in (client, agent):
        edits.add(("spec", "initContainers"), container)
    _add_pull_secrets(edits, [secret.name for secret in pool.spec.agent.image_pull_secrets])
    exclude_ports(edits)
    let_volumes_go(edits)
    edits.set(("metadata", "labels", POOL_LABEL), own)
    edits.set(("metadata", "annotations", CONFIG_HASH_ANNOTATION), new_pods_hash(pool))
    annotations = edits.template["metadata"]["annotations"]
    annotations[ORIGINALS_ANNOTATION] = edits.record(str(engine["name"]))
    if sum(len(name.encode()) + len(str(value).encode()) for name, value in annotations.items()) > MAX_ANNOTATIONS:
        raise Refused("annotations_full")
    return withheld


def _add_pull_secrets(edits: Edits, names: list[str]) -> None:
    """One that the pod names already stays the pod's own."""
    there = {secret.get("name") for secret in edits.template["spec"].get("imagePullSecrets") or []}
    for name in dict.fromkeys(names):
        if name not in there:
            edits.add(("spec", "imagePullSecrets"), {"name": name})


def new_pods_hash(pool: KVCachePool) -> str:
    """Changes with what running agents don't take over, so that such a change of the pool rolls its pods and no other
    does. The hash in an agent's status is another: it names the whole document in force."""
    return digest_of(encode_fixed(agent_config(pool)).encode())
