"""Requests and limits: of kvpool's own containers, and what the host pool adds to the engine's.

Ours are complete, because a LimitRange would fill in what is missing and a ResourceQuota would refuse the pod. Where
the pod is Guaranteed they are equal, so that it stays so: losing that class loses pinned cores and the pod's place in
the order of out-of-memory kills. A pod without any requests becomes Burstable.
"""

from typing import Any

from kvpool_operator.inject.amounts import milli, write
from kvpool_operator.inject.edits import Edits

_QOS = ("cpu", "memory")


def is_guaranteed(spec: dict[str, Any]) -> bool:
    """Whether requests of cpu and memory equal the limits (absent requests are the limits): of the pod where it has
    its own, else of every container."""
    if any((spec.get("resources") or {}).values()):
        return _all_equal(spec["resources"])
    return all(_all_equal(c.get("resources") or {}) for c in [*spec["containers"], *(spec.get("initContainers") or [])])


def _all_equal(resources: dict[str, Any]) -> bool:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    return all(name in limits and milli(requests.get(name, limits[name])) == milli(limits[name]) for name in _QOS)


def complete(
    requests: dict[str, Any], limits: dict[str, Any], wanted: tuple[dict[str, Any], dict[str, Any]], *, guaranteed: bool
) -> dict[str, dict[str, Any]]:
    """The computed `requests` and `limits` with the pool's own (`wanted`) in place of them, in a form that the API
    server takes: no request above its limit."""
    own_requests, own_limits = wanted
    requests, limits = requests | own_requests, limits | own_limits
    for name, limit in limits.items():
        request, equal = requests.get(name, limit), guaranteed and name in _QOS
        if not equal and milli(request) <= milli(limit):
            continue
        if name in own_requests and (name not in own_limits or not equal):
            limits[name] = request
        else:
            requests[name] = limit
    return {"requests": requests, "limits": limits}


def raise_engine(edits: Edits, engine: dict[str, Any], host_pool: int) -> None:
    """The host pool's pages are charged to the engine, which touches them first."""
    for kind in ("requests", "limits"):
        present = ((engine.get("resources") or {}).get(kind) or {}).get("memory")
        if present is not None:
            path = ("spec", "containers", engine["name"], "resources", kind, "memory")
            edits.set(path, write("memory", milli(present) + 1000 * host_pool))


def raise_pod(edits: Edits, agent: dict[str, dict[str, Any]], host_pool: int) -> None:
    """Where the pod has resources of its own, all its containers share them: what the agent and the host pool need
    comes on top."""
    resources = edits.template["spec"].get("resources") or {}
    for kind in ("requests", "limits"):
        for name, present in dict(resources.get(kind) or {}).items():
            if name in _QOS:
                added = milli(agent[kind][name]) + (1000 * host_pool if name == "memory" else 0)
                edits.set(("spec", "resources", kind, name), write(name, milli(present) + added))
