"""kvpool's own containers: the agent, a native sidecar, and the init container that copies the plug-in.

Both come from one image, so agent and plug-in can't be of different builds. Requests and limits are always
set, because a LimitRange or a ResourceQuota would otherwise fill them in or refuse the pod; for a Guaranteed
pod they are equal, so that it stays Guaranteed.
"""

from typing import Any

from kvpool_contract.names import PEER_PORT, SUPERVISOR_PORT, TEMPLATE_VARIABLE, WORKER_PORT
from kvpool_operator.desired.objects import PEER_PORT_NAME
from kvpool_operator.desired.pool import KVCachePool
from kvpool_operator.desired.quantity import format_quantity, parse_quantity
from kvpool_operator.inject.engine import CLIENT_DIR, CLIENT_VOLUME, RUN_DIR, RUN_VOLUME

AGENT, CLIENT = "kvpool-agent", "kvpool-client"
CONFIG_DIR, CONFIG_VOLUME = "/etc/kvpool", "kvpool-config"
NO_TOKEN_VOLUME = "kvpool-no-token"  # noqa: S105 (the name of an empty volume)
TOKEN_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 (the path it is kept out of)
USER_ID = 10001
AGENT_OVERHEAD = 512 * 2**20
PAGE_TABLES = 256  # mapping the arena costs a part of it: 8 bytes a page in each of two processes
CLIENT_MEMORY = 128 * 2**20

SECURITY_CONTEXT = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def is_guaranteed(containers: list[dict[str, Any]]) -> bool:
    """Whether every container's requests of cpu and memory equal its limits (absent requests are the
    limits)."""
    for container in containers:
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for name in ("cpu", "memory"):
            if name not in limits or _milli(requests.get(name, limits[name])) != _milli(limits[name]):
                return False
    return True


def _milli(quantity: object) -> int:
    """Thousandths: cpu is counted in them."""
    text = str(quantity)
    return parse_quantity(text[:-1]) if text.endswith("m") else 1000 * parse_quantity(text)


def agent_container(pool: KVCachePool, image: str, revision: str, *, guaranteed: bool) -> dict[str, Any]:
    """Restarts by itself, starts before the engine and ends after it; its readiness is part of the pod's. revision:
    the hash of the pod's template."""
    arena = int(pool.spec.tiers.memory.size)
    memory = arena + AGENT_OVERHEAD + arena // PAGE_TABLES
    resources = _resources(memory, limit_cpu="2", request_cpu="250m", disk="256Mi", guaranteed=guaranteed)
    resources["requests"].update(pool.spec.agent.resources.requests)
    resources["limits"].update(pool.spec.agent.resources.limits)
    return {
        "name": AGENT,
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
        "securityContext": _security_context(),
        "volumeMounts": [
            {"name": CONFIG_VOLUME, "mountPath": CONFIG_DIR, "readOnly": True},
            {"name": RUN_VOLUME, "mountPath": RUN_DIR},
            _no_token(),
        ],
    }


def client_container(image: str, *, guaranteed: bool) -> dict[str, Any]:
    """Copies the plug-in into a volume that the engine mounts: the engine's image stays as it is."""
    return {
        "name": CLIENT,
        "image": image,
        "command": ["python3", "-m", "kvpool_client.install", CLIENT_DIR],
        "resources": _resources(CLIENT_MEMORY, limit_cpu="500m", request_cpu="50m", disk="64Mi", guaranteed=guaranteed),
        "securityContext": _security_context(),
        "volumeMounts": [{"name": CLIENT_VOLUME, "mountPath": CLIENT_DIR}, _no_token()],
    }


def volumes(config_map: str) -> list[dict[str, Any]]:
    """The volumes of both. The run directory is memory: full, it refuses a write instead of evicting the
    pod."""
    return [
        {"name": CONFIG_VOLUME, "configMap": {"name": config_map, "optional": True}},
        {"name": RUN_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
        {"name": CLIENT_VOLUME, "emptyDir": {}},
        {"name": NO_TOKEN_VOLUME, "emptyDir": {}},
    ]


def _resources(
    memory: int, *, limit_cpu: str, request_cpu: str, disk: str, guaranteed: bool
) -> dict[str, dict[str, Any]]:
    limits: dict[str, Any] = {"cpu": limit_cpu, "memory": format_quantity(memory), "ephemeral-storage": disk}
    return {"requests": limits | {"cpu": limit_cpu if guaranteed else request_cpu}, "limits": limits}


def _security_context() -> dict[str, Any]:
    return {
        **SECURITY_CONTEXT,
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
