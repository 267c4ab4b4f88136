"""Declared prefixes that lie in ConfigMaps: read at each pass, so that an edit is in force with the next one."""

import asyncio

import msgspec

from kvpool_operator.controller.cluster import Cluster
from kvpool_operator.desired.pool import KVCachePool
from kvpool_operator.desired.publication import config_maps, with_texts


async def with_config_maps(cluster: Cluster, pool: KVCachePool) -> tuple[KVCachePool, str]:
    """The pool with the texts of its prefixes, and a sentence on each that could not be had; empty where all could."""
    if not (names := config_maps(pool.spec.publication)):
        return pool, ""
    found = {}
    for name in names:
        place = {"kind": "ConfigMap", "metadata": {"namespace": pool.metadata.namespace, "name": name}}
        read = await asyncio.to_thread(cluster.read, place)
        found[name] = None if read is None else read.get("data") or {}
    publication, problem = with_texts(pool.spec.publication, found)
    spec = msgspec.structs.replace(pool.spec, publication=publication)
    return msgspec.structs.replace(pool, spec=spec), problem
