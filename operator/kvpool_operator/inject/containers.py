"""kvpool's own containers: the agent, a native sidecar, and the init container that copies the plug-in.

Both come from one image, so agent and plug-in can't be of different builds. They say for themselves all that Pod
Security's *restricted* profile asks for, so that they hold whatever the pod's own security context says (`rdma` has the
one exception). They name no user where none is needed: the image's own is numeric, the pod's own is as good, since
nothing between agent and engine depends on it, and OpenShift refuses a user outside the range of the pod's namespace.
"""

from collections.abc import Iterable
from typing import Any

from kvpool_contract.external import CREDENTIALS_FOLDER
from kvpool_contract.identity import (
    AUDIENCE,
    AUTHORITIES_FILE,
    CERTIFICATE_FILE,
    IDENTITY_FOLDER,
    KEY_FILE,
    TOKEN_FILE,
)
from kvpool_contract.names import PEER_PORT, SUPERVISOR_PORT, TEMPLATE_VARIABLE, WORKER_PORT, pool_object_name
from kvpool_operator.desired.objects import PEER_PORT_NAME
from kvpool_operator.desired.pods import AGENT_CONTAINER, CLIENT_CONTAINER, IDENTITY_VOLUME
from kvpool_operator.desired.pool import KVCachePool
from kvpool_operator.desired.quantity import format_quantity
from kvpool_operator.desired.store import store_volume
from kvpool_operator.inject.disk import disk_mounts, disk_volumes, ephemeral_bytes
from kvpool_operator.inject.engine import CLIENT_VOLUME, RUN_DIR, RUN_VOLUME
from kvpool_operator.inject.rdma import rdma_resource
from kvpool_operator.inject.resources import STORAGE, Bounds, complete
from kvpool_operator.inject.start import CLIENT_DIR

CONFIG_DIR, CONFIG_VOLUME = "/etc/kvpool", "kvpool-config"
STORE_VOLUME = "kvpool-store"
TOKEN_SECONDS = 3600  # the kubelet renews it when a fifth of them is left
NO_TOKEN_VOLUME = "kvpool-no-token"  # noqa: S105 (the name of an empty volume)
TOKEN_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 (the path it is kept out of)
USER_ID = 10001
AGENT_OVERHEAD = 512 * 2**20
AGENT_STORAGE = 256 * 2**20
PAGE_TABLES = 256  # mapping the arena costs a part of it: 8 bytes a page in each of two processes
CLIENT_MEMORY = 128 * 2**20

SECURITY_CONTEXT = {
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def agent_container(
    pool: KVCachePool, image: str, revision: str, named: Iterable[str], bounds: Bounds, *, as_root: bool
) -> dict[str, Any]:
    """Restarts by itself, starts before the engine and ends after it; its readiness is part of the pod's. revision:
    the hash of the pod's template; named: the pod's own volumes; as_root: whether the pod's own security context makes
    its containers root."""
    arena = int(pool.spec.tiers.memory.size)
    memory = arena + AGENT_OVERHEAD + arena // PAGE_TABLES
    storage = _storage(memory, format_quantity(AGENT_STORAGE + ephemeral_bytes(pool)))
    said = pool.spec.agent.resources
    # In a Guaranteed pod the limit is requested, too, and under the static CPU policy a core is taken from all others.
    resources = complete(
        {"cpu": "250m", **storage, **rdma_resource(pool)},
        {"cpu": "1" if bounds.guaranteed else "2", **storage, **rdma_resource(pool)},
        (said.requests, said.limits),
        bounds,
    )
    return {
        "name": AGENT_CONTAINER,
        "image": image,
        "command": [
            "python3",
            "-m",
            "kvpool_agent",
            "--config",
            f"{CONFIG_DIR}/agent.json",
            "--run-dir",
            RUN_DIR,
        ],
        "restartPolicy": "Always",
        "env": [
            _field("KVPOOL_MEMBER_UID", "metadata.uid"),
            _field("KVPOOL_MEMBER_NAME", "metadata.name"),
            {"name": TEMPLATE_VARIABLE, "value": revision},
        ],
        "ports": [
            {"name": PEER_PORT_NAME, "containerPort": PEER_PORT, "protocol": "TCP"},
            {"name": "kvpool-probes", "containerPort": SUPERVISOR_PORT, "protocol": "TCP"},
            {"name": "kvpool-status", "containerPort": WORKER_PORT, "protocol": "TCP"},
        ],
        # Every second: a newcomer serves as soon as it is warm. The engine waits for the start, so the start
        # gets long; a hiccup of seconds neither takes a pod out of its Service nor restarts the agent.
        "startupProbe": _probe("/startedz", period=1, failures=300),
        "readinessProbe": _probe("/readyz", period=1, failures=5),
        "livenessProbe": _probe("/livez", period=10, failures=6),
        "resources": resources,
        "securityContext": _security_context(as_root=as_root),
        "volumeMounts": [
            {"name": CONFIG_VOLUME, "mountPath": CONFIG_DIR, "readOnly": True},
            {"name": RUN_VOLUME, "mountPath": RUN_DIR},
            *disk_mounts(pool, named),
            *([] if _identity(pool) is None else [_mounted_identity()]),
            *(
                {"name": volume["name"], "mountPath": CREDENTIALS_FOLDER, "readOnly": True}
                for volume in _credentials(pool)
            ),
            _no_token(),
        ],
    }


def client_container(image: str, bounds: Bounds, *, as_root: bool) -> dict[str, Any]:
    """Copies the plug-in into a volume that the engine mounts: the engine's image stays as it is."""
    resources = complete(
        {"cpu": "50m", **_storage(CLIENT_MEMORY, "64Mi")},
        {"cpu": "500m", **_storage(CLIENT_MEMORY, "64Mi")},
        ({}, {}),
        bounds,
    )
    return {
        "name": CLIENT_CONTAINER,
        "image": image,
        "command": ["python3", "-m", "kvpool_client.install", CLIENT_DIR],
        "resources": resources,
        "securityContext": _security_context(as_root=as_root),
        "volumeMounts": [{"name": CLIENT_VOLUME, "mountPath": CLIENT_DIR}, _no_token()],
    }


def volumes(pool: KVCachePool) -> list[dict[str, Any]]:
    """The volumes of both. The run directory is memory: full, it refuses a write instead of evicting the
    pod."""
    identity = _identity(pool)
    return [
        {"name": CONFIG_VOLUME, "configMap": {"name": pool_object_name(pool.metadata.name), "optional": True}},
        *([] if identity is None else [identity]),
        {"name": RUN_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
        {"name": CLIENT_VOLUME, "emptyDir": {}},
        {"name": NO_TOKEN_VOLUME, "emptyDir": {}},
        *disk_volumes(pool),
        *_credentials(pool),
    ]


def _identity(pool: KVCachePool) -> dict[str, Any] | None:
    """What the agent proves by who it is: a token of the pod that is good for kvpool's signer alone, or the Secret that
    the pool names. A Secret that is not there must not keep the pod from starting."""
    tls = pool.spec.transport.tls
    if tls.mode == "Managed":
        token = {"audience": AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": TOKEN_FILE}
        return {"name": IDENTITY_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}
    if tls.mode == "Secret":
        items = [{"key": name, "path": name} for name in (CERTIFICATE_FILE, KEY_FILE, AUTHORITIES_FILE)]
        return {
            "name": IDENTITY_VOLUME,
            "secret": {"secretName": tls.secret_ref.name, "items": items, "optional": True},
        }
    return None


def _mounted_identity() -> dict[str, Any]:
    return {"name": IDENTITY_VOLUME, "mountPath": IDENTITY_FOLDER, "readOnly": True}


def _credentials(pool: KVCachePool) -> list[dict[str, Any]]:
    """The volume with the external store's credentials: one at most."""
    volume = store_volume(pool.spec.store, STORE_VOLUME)
    return [] if volume is None else [volume]


def _storage(memory: int, disk: str) -> dict[str, Any]:
    return {"memory": format_quantity(memory), STORAGE: disk}


def _security_context(*, as_root: bool) -> dict[str, Any]:
    return {
        **SECURITY_CONTEXT,
        **({"runAsUser": USER_ID, "runAsGroup": USER_ID} if as_root else {}),
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _no_token() -> dict[str, Any]:
    """An empty folder where the API token would be mounted keeps it out: agents need no API credential."""
    return {"name": NO_TOKEN_VOLUME, "mountPath": TOKEN_DIR, "readOnly": True}


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probe(path: str, *, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": SUPERVISOR_PORT},
        "periodSeconds": period,
        "timeoutSeconds": 2,
        "failureThreshold": failures,
    }
