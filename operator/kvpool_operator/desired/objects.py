"""The objects of a pool: its agents' configuration in a ConfigMap, and the headless Service that names its
members.

Both are functions of the pool, so applying them again changes nothing. The document tells from which generation of the
pool it is; a generation that leaves all the rest as it was keeps the document that is there, so that neither the
ConfigMap nor an agent moves for a change that no agent is told.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from kvpool_contract.config import VERSION as CONFIG_VERSION
from kvpool_contract.config import (
    AgentConfig,
    Canary,
    ConfigError,
    Disk,
    Drain,
    Engine,
    Loading,
    Members,
    Prewarm,
    Publication,
    Rdma,
    Readiness,
    Replication,
    Transport,
    decode_config,
    digest_of,
    encode_config,
)
from kvpool_contract.external import Store
from kvpool_contract.names import CONFIG_FILE, PEER_PORT, POOL_LABEL, pool_object_name
from kvpool_contract.tenants import KEYS_FOLDER
from kvpool_operator.desired.pool import KVCachePool
from kvpool_operator.desired.publication import agent_prefixes
from kvpool_operator.desired.spaces import GATEWAY_KEY_FILE, agent_spaces
from kvpool_operator.desired.store import agent_store
from kvpool_operator.desired.trust import Trust, agent_tls, authorities, needs_trust

PEER_PORT_NAME = "kvpool-peer"
# Fields of the agents' configuration that the pool's spec calls otherwise.
_POOL_FIELDS = {
    "arenaBytes": "tiers.memory.size",
    "disk.path": "tiers.disk",
    "disk.bytes": "tiers.disk",
    "gatewayKeyFile": "gatewayKeySecretRef",
    **{f"store.{each.name}": "store" for each in dataclasses.fields(Store)},
    "eviction": "tiers.memory.eviction",
    "ownedPercent": "tiers.memory.ownedPercent",
    "hugePages": "tiers.memory.hugePages",
    "tls.mode": "transport.tls.mode",
}
DISK_DIR = "/var/lib/kvpool"  # in the agent's container


def agent_config(pool: KVCachePool, generation: int = 0, trust: Trust | None = None) -> AgentConfig:
    """What every agent of the pool is told. generation: the pool's, where the API server keeps it; trust: None where
    nobody knows, such as the command line."""
    name, namespace, spec = pool.metadata.name, pool.metadata.namespace, pool.spec
    return AgentConfig(
        version=CONFIG_VERSION,
        pool=name,
        arenaBytes=int(spec.tiers.memory.size),
        eviction=spec.tiers.memory.eviction,
        ownedPercent=spec.tiers.memory.owned_percent,
        hugePages=spec.tiers.memory.huge_pages,
        disk=_disk(pool),
        store=agent_store(spec.store, namespace, name),
        transport=_transport(pool),
        members=Members(dns=f"{pool_object_name(name)}.{namespace}.svc:{PEER_PORT}"),
        tls=agent_tls(pool, trust),
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
            onDeadline=spec.readiness.on_deadline,
        ),
        loading=Loading(
            mode=spec.loading.mode,
            margin=spec.loading.margin,
            deadlineSeconds=spec.loading.deadline_seconds,
            maxBytesPerSecond=int(spec.loading.max_bytes_per_second),
            calibrationSeconds=spec.loading.calibration_seconds,
        ),
        drain=Drain(maxSeconds=spec.drain.max_seconds, maxBytesPerSecond=int(spec.drain.max_bytes_per_second)),
        replication=Replication(maxBytesPerSecond=int(spec.replication.max_bytes_per_second)),
        canary=Canary(intervalSeconds=spec.canary.interval_seconds),
        publication=Publication(policy=spec.publication.policy, maxDepthTokens=spec.publication.max_depth_tokens),
        declaredPrefixes=agent_prefixes(spec.publication),
        paused=spec.paused,
        generation=generation,
        cacheNamespaces=agent_spaces(spec.cache_namespaces),
        requestNamespace=spec.request_namespace,
        gatewayKeyFile=f"{KEYS_FOLDER}/{GATEWAY_KEY_FILE}" if spec.gateway_key_secret_ref.name else "",
    )


def _disk(pool: KVCachePool) -> Disk:
    disk = pool.spec.tiers.disk
    return Disk(path=DISK_DIR if disk.wanted else "", bytes=int(disk.size))


def _transport(pool: KVCachePool) -> Transport:
    told = pool.spec.transport
    rdma = Rdma(devices=tuple(told.rdma.devices), allowUnencrypted=told.rdma.allow_unencrypted)
    return Transport(type=told.type, rdma=rdma)


def pool_field(path: str) -> str:
    """What the pool's spec calls a field of the agents' configuration; the path itself where nothing else is known."""
    return _POOL_FIELDS.get(path, path)


def config_map(pool: KVCachePool, generation: int = 0, trust: Trust | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(pool),
        "data": {CONFIG_FILE: encode_config(agent_config(pool, generation, trust)), **authorities(pool, trust)},
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


def pool_objects(pool: KVCachePool, generation: int = 0, trust: Trust | None = None) -> list[dict[str, Any]]:
    """All objects of the pool, in the order in which they are applied. Without trust a pool whose members have
    certificates gets no ConfigMap: its agents could do nothing with it."""
    known = trust is not None or not needs_trust(pool)
    return [*([config_map(pool, generation, trust)] if known else []), headless_service(pool)]


def keeping_document(wanted: dict[str, Any], found: Mapping[str, Any] | None) -> dict[str, Any]:
    """The wanted object; a ConfigMap with the document that is found in its place, where only the generation would
    be another."""
    data = (found or {}).get("data") or {}
    if wanted["kind"] != "ConfigMap" or CONFIG_FILE not in data:
        return wanted
    try:
        there = decode_config(str(data[CONFIG_FILE]).encode()).config
    except ConfigError:
        return wanted
    document = wanted["data"][CONFIG_FILE]
    same = dataclasses.replace(decode_config(document.encode()).config, generation=there.generation)
    if encode_config(same) != data[CONFIG_FILE]:
        return wanted
    return {**wanted, "data": {**wanted["data"], CONFIG_FILE: data[CONFIG_FILE]}}


def document_hash(config_map: Mapping[str, Any]) -> str:
    """What an agent shows as `config.hash` while the document of this ConfigMap is in force."""
    return digest_of(config_map["data"][CONFIG_FILE].encode())


def _metadata(pool: KVCachePool) -> dict[str, Any]:
    return {
        "name": pool_object_name(pool.metadata.name),
        "namespace": pool.metadata.namespace,
        "labels": {POOL_LABEL: pool.metadata.name},
    }
