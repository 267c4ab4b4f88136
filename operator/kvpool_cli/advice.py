"""The pool that a plan asks for, as YAML to apply."""

from typing import Any

import yaml

from kvpool_cli.plan import Planned
from kvpool_lab.verdict import SHARE
from kvpool_operator.desired.pool import API_VERSION, KIND
from kvpool_operator.desired.quantity import format_quantity

MIB, GIB = 2**20, 2**30


def pool(planned: Planned, name: str, k8s_namespace: str) -> dict[str, Any] | None:
    """The KVCachePool; None where no class of the traffic is to share."""
    if all(each.word != SHARE for each in planned.verdicts):
        return None
    warmed = planned.hot_set
    hot = 0 if warmed is None else (warmed.blocks or 0) * planned.block_bytes
    memory = {"size": quantity(planned.arena_blocks * planned.block_bytes), "eviction": planned.policy}
    return document(name, k8s_namespace, memory, hot, planned.wanted.join_seconds)


def document(
    name: str, k8s_namespace: str, memory: dict[str, str], hot_bytes: int | None, join_seconds: float
) -> dict[str, Any]:
    """memory: of `tiers.memory`, what is to be said of it. hot_bytes: 0 for no warm-up, None where nothing is known."""
    spec: dict[str, Any] = {"tiers": {"memory": memory}} if memory else {}
    if hot_bytes is not None:
        spec["prewarm"] = {"maxBytes": quantity(hot_bytes) if hot_bytes else 0}
    if hot_bytes:
        spec["prewarm"]["maxBytesPerSecond"] = quantity(max(1, round(hot_bytes / join_seconds)))
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": k8s_namespace},
        "spec": spec,
    }


def as_yaml(made: dict[str, Any]) -> str:
    return yaml.safe_dump(made, sort_keys=False)


def quantity(count: int) -> str:
    """Rounded up to Mi, from 10 Gi on to Gi: nobody wants to read bytes."""
    unit = GIB if count >= 10 * GIB else MIB
    return format_quantity(-(-count // unit) * unit)
