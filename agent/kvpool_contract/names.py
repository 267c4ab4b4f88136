"""Names that several processes must spell alike: labels, ports, paths, and the names of blocks and formats."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

API_GROUP = "kvpool.io"
POOL_LABEL = "kvpool.io/pool"
CONFIG_HASH_ANNOTATION = "kvpool.io/config-hash"  # of the part that holds for new pods alone
ORIGINALS_ANNOTATION = "kvpool.io/originals"
SKIPPED_ANNOTATION = "kvpool.io/skipped"
REQUIRE_ANNOTATION = "kvpool.io/require"
UPDATE_ANNOTATION = "kvpool.io/agent-update"  # of a pod whose agent has been given another image in place

PEER_PORT = 7700
SUPERVISOR_PORT = 7701
WORKER_PORT = 7702

CONFIG_FILE = "agent.json"
TEMPLATE_VARIABLE = "KVPOOL_TEMPLATE"  # of the agent: the hash of its pod's template
CACHE_NAMESPACES_VARIABLE = "KVPOOL_CACHE_NAMESPACES"  # of the agent: those that its pod may hold, but the default one
IPC_LOCK_VARIABLE = "KVPOOL_IPC_LOCK_WITHHELD"  # of the agent: why it has no IPC_LOCK, where its pool wants it to
ENGINE_SOCKET = "engine.sock"

BLOCK_KEY_BYTES = 16
FINGERPRINT_BYTES = 16


def pool_object_name(pool: str) -> str:
    """Name of the ConfigMap and of the headless Service of a pool."""
    return f"{pool}-kvpool"


def format_fingerprint(fields: Mapping[str, Any]) -> bytes:
    """16 bytes that name a format: BLAKE2b over the canonical JSON of all its fields.

    Canonical: UTF-8, keys sorted at every level, no blanks. Two formats are the same only if every field is.
    """
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=FINGERPRINT_BYTES).digest()


def block_key(engine_hash: bytes, group: int, fingerprint: bytes, namespace_key: bytes = b"") -> bytes:
    """The 16-byte key of a block: the only name of it that leaves the pod.

    BLAKE2b(engine hash ‖ group ‖ format fingerprint), keyed with the cache namespace's key (at most 64 bytes; the
    default cache namespace has an empty one). The engine hash commits to the whole prefix; its length is
    hashed in, so that no two triples share an input.
    """
    material = len(engine_hash).to_bytes(2, "big") + engine_hash + group.to_bytes(4, "big") + fingerprint
    return hashlib.blake2b(material, digest_size=BLOCK_KEY_BYTES, key=namespace_key).digest()
