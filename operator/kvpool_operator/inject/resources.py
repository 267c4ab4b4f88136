"""Requests and limits: of kvpool's own containers, and what the host pool adds to the engine's.

Ours are complete, because a LimitRange would fill in what is missing and a ResourceQuota would refuse the pod. Where
the pod is Guaranteed they are equal, so that it stays so: losing that class loses pinned cores and the pod's place in
the order of out-of-memory kills. A pod without any requests becomes Burstable.

Of ephemeral storage ours have a limit only where a container of the pod's own has one. The kubelet adds up the limits
that there are and evicts a pod that uses more than their sum, whichever container does: a limit of ours alone would be
that of an engine which downloads its model. A LimitRange has given the pod's own containers theirs before we see them.
"""

from dataclasses import dataclass
from typing import Any

from kvpool_operator.desired.quantity import parse_milli
from kvpool_operator.inject.amounts import write
from kvpool_operator.inject.edits import Edits

_QOS = ("cpu", "memory")
STORAGE = "ephemeral-storage"


@dataclass(frozen=True)
class Bounds:
    """How the pod's own containers are bounded. `guaranteed`: it is of the class Guaranteed. `storage`: one of them has
    a limit of ephemeral storage."""

    guaranteed: bool = False
    storage: bool = False


def bounds_of(spec: dict[str, Any]) -> Bounds:
    """spec: the pod's, without kvpool's parts."""
    own = [*spec["containers"], *(spec.get("initContainers") or [])]
    limited = any(STORAGE in ((c.get("resources") or {}).get("limits") or {}) for c in own)
    return Bounds(is_guaranteed(spec), storage=limited)


def is_guaranteed(spec: dict[str, Any]) -> bool:
    """Whether requests of cpu and memory equal the limits (absent requests are the limits): of the pod where it has
    its own, else of every container."""
    if any((spec.get("resources") or {}).values()):
        return _all_equal(spec["resources"])
    return all(_all_equal(c.get("resources") or {}) for c in [*spec["containers"], *(spec.get("initContainers") or [])])


def _all_equal(resources: dict[str, Any]) -> bool:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    return all(
        name in limits and parse_milli(requests.get(name, limits[name])) == parse_milli(limits[name]) for name in _QOS
    )


def complete(
    requests: dict[str, Any], limits: dict[str, Any], wanted: tuple[dict[str, Any], dict[str, Any]], bounds: Bounds
) -> dict[str, dict[str, Any]]:
    """The computed `requests` and `limits` with the pool's own (`wanted`) in place of them, in a form that the API
    server takes: no request above its limit."""
    own_requests, own_limits = wanted
    limits = {name: limit for name, limit in limits.items() if name != STORAGE or bounds.storage}
    requests, limits = requests | own_requests, limits | own_limits
    for name, limit in limits.items():
        request, equal = requests.get(name, limit), bounds.guaranteed and name in _QOS
        if not equal and parse_milli(request) <= parse_milli(limit):
            continue
        if name in own_requests and (name not in own_limits or not equal):
            limits[name] = request
        else:
            requests[name] = limit
    return {"requests": requests, "limits": limits}


def raise_engine(edits: Edits, engine: dict[str, Any], host_pool: int) -> None:
    """The host pool's pages are charged to the engine, which touches them first. `host_pool`: its bytes, 0 where
    nothing is to grow.

    A request that isn't there is the limit; it is written out, since the API server would write it, too, and then
    nobody could tell that it grew with the limit. A limit of zero is none, and allows no request but zero."""
    present = engine.get("resources") or {}
    limit = (present.get("limits") or {}).get("memory")
    if not host_pool or _is_zero(limit):
        return
    path = ("spec", "containers", engine["name"], "resources")
    for kind in ("requests", "limits"):
        amount = (present.get(kind) or {}).get("memory", limit)
        if amount is not None:
            edits.collection(*path, kind, kind=dict)
            edits.set((*path, kind, "memory"), write("memory", parse_milli(amount) + 1000 * host_pool))


def _is_zero(limit: Any) -> bool:
    return limit is not None and parse_milli(limit) == 0


def raise_pod(edits: Edits, agent: dict[str, dict[str, Any]], host_pool: int) -> None:
    """Where the pod has resources of its own, all its containers share them: what the agent and the host pool need
    comes on top."""
    resources = edits.template["spec"].get("resources") or {}
    for kind in ("limits", "requests"):
        for name, present in dict(resources.get(kind) or {}).items():
            if name in _QOS:
                added = parse_milli(agent[kind][name]) + (1000 * host_pool if name == "memory" else 0)
                most = (resources.get("limits") or {}).get(name)
                if _is_zero(most):
                    continue
                amount = parse_milli(present) + added
                amount = amount if kind == "limits" or most is None else min(amount, parse_milli(most))
                edits.set(("spec", "resources", kind, name), write(name, amount))
