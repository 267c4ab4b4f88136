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
    prewarm = {"maxBytes": _quantity(hot) if hot else 0}
    if hot:
        prewarm["maxBytesPerSecond"] = _quantity(max(1, round(hot / planned.wanted.join_seconds)))
    memory = {"size": _quantity(planned.arena_blocks * planned.block_bytes), "eviction": planned.policy}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": k8s_namespace},
        "spec": {"tiers": {"memory": memory}, "prewarm": prewarm},
    }


def as_yaml(document: dict[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False)


def _quantity(count: int) -> str:
    """Rounded up to Mi, from 10 Gi on to Gi: nobody wants to read bytes."""
    unit = GIB if count >= 10 * GIB else MIB
    return format_quantity(-(-count // unit) * unit)
