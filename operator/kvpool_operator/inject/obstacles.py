"""Pods that are left as they are, whatever their engine is: each kind with its reason."""

from typing import Any

from kvpool_contract.names import POOL_LABEL
from kvpool_operator.desired.pods import GROUP_LABEL
from kvpool_operator.inject.engine import AGENT_PORTS, CLIENT_CONFIG_VARIABLE
from kvpool_operator.inject.refusal import Refused

OWN_PREFIX = "kvpool-"
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
SIDECARS_SINCE = (1, 29)
# A group's pods are one engine; a restart of any of its containers, ours too, builds the whole group anew.
_GROUP_LABELS = (GROUP_LABEL, "ray.io/cluster")


def refuse_pod(template: dict[str, Any], pool: str, kubernetes: tuple[int, int] | None) -> None:
    """Raises Refused. `kubernetes` is the version of the oldest node, None where nobody knows it."""
    metadata, spec = template.get("metadata") or {}, template["spec"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if kubernetes is not None and kubernetes < SIDECARS_SINCE:
        raise Refused("sidecars_unsupported")
    if MIRROR_ANNOTATION in annotations:
        raise Refused("mirror_pod")
    if _is_windows(spec):
        raise Refused("windows")
    if has_own_parts(spec):
        raise Refused("already_injected")
    if labels.get(POOL_LABEL, pool) != pool:
        raise Refused("other_pool")
    if spec.get("hostNetwork"):
        raise Refused("host_network")
    if any(label in labels for label in _GROUP_LABELS):
        raise Refused("multi_host")
    if AGENT_PORTS & _ports(spec):
        raise Refused("port_taken")


def _is_windows(spec: dict[str, Any]) -> bool:
    return "windows" in (
        (spec.get("os") or {}).get("name"),
        (spec.get("nodeSelector") or {}).get("kubernetes.io/os"),
    )


def has_own_parts(spec: dict[str, Any]) -> bool:
    """Containers and volumes by our prefix, or the plug-in's variable: anything of ours would be there
    twice."""
    users, inits = spec.get("containers") or [], spec.get("initContainers") or []
    named = [*inits, *users, *(spec.get("volumes") or [])]
    return any(str(part.get("name", "")).startswith(OWN_PREFIX) for part in named) or any(
        entry.get("name") == CLIENT_CONFIG_VARIABLE for container in users for entry in container.get("env") or []
    )


def _ports(spec: dict[str, Any]) -> set[Any]:
    containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    return {port.get("containerPort") for container in containers for port in container.get("ports") or []}
