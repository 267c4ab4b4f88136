"""The objects of a pool: its agents' configuration in a ConfigMap, and the headless Service that names its
members.

Both are functions of the pool alone, so applying them again changes nothing.
"""

from typing import Any

from kvpool_contract.config import VERSION as CONFIG_VERSION
from kvpool_contract.config import AgentConfig, Engine, Loading, Members, Prewarm, Readiness, encode_config
from kvpool_contract.names import CONFIG_FILE, PEER_PORT, POOL_LABEL, pool_object_name
from kvpool_operator.desired.pool import KVCachePool

PEER_PORT_NAME = "kvpool-peer"


def agent_config(pool: KVCachePool) -> AgentConfig:
    """What every agent of the pool is told."""
    name, namespace, spec = pool.metadata.name, pool.metadata.namespace, pool.spec
    return AgentConfig(
        version=CONFIG_VERSION,
        pool=name,
        arenaBytes=int(spec.tiers.memory.size),
        members=Members(dns=f"{pool_object_name(name)}.{namespace}.svc:{PEER_PORT}"),
        engine=Engine(port=spec.engine.port),
        prewarm=Prewarm(
            maxBytes=int(spec.prewarm.max_bytes),
            maxBytesPerSecond=int(spec.prewarm.max_bytes_per_second),
            maxStreams=spec.prewarm.max_streams,
            sourceMaxStreams=spec.prewarm.source_max_streams,
        ),
        readiness=Readiness(
            targetPercent=spec.readiness.target_percent,
            deadlineSeconds=spec.readiness.deadline_seconds,
            attachGraceSeconds=spec.readiness.attach_grace_seconds,
        ),
        loading=Loading(
            deadlineSeconds=spec.loading.deadline_seconds,
            maxBytesPerSecond=int(spec.loading.max_bytes_per_second),
        ),
        paused=spec.paused,
    )


def config_map(pool: KVCachePool) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(pool),
        "data": {CONFIG_FILE: encode_config(agent_config(pool))},
    }


def headless_service(pool: KVCachePool) -> dict[str, Any]:
    """Resolves to every member, ready or not: a newcomer is found, and finds others, before it is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(pool),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {POOL_LABEL: pool.metadata.name},
            "ports": [{"name": PEER_PORT_NAME, "port": PEER_PORT, "protocol": "TCP"}],
        },
    }


def pool_objects(pool: KVCachePool) -> list[dict[str, Any]]:
    """All objects of the pool, in the order in which they are applied."""
    return [config_map(pool), headless_service(pool)]


def _metadata(pool: KVCachePool) -> dict[str, Any]:
    return {
        "name": pool_object_name(pool.metadata.name),
        "namespace": pool.metadata.namespace,
        "labels": {POOL_LABEL: pool.metadata.name},
    }
