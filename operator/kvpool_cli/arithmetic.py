"""What joining a pool costs each pod in memory, and where it goes: said whenever a workload is joined."""

from typing import Any

from kvpool_operator.desired.pods import AGENT_CONTAINER
from kvpool_operator.desired.pool import KVCachePool
from kvpool_operator.desired.quantity import format_quantity, parse_quantity
from kvpool_operator.inject import Injected


def memory(title: str, before: dict[str, Any], result: Injected, pool: KVCachePool) -> str:
    """One line. before: the template without kvpool's parts."""
    host_pool, arena = int(pool.spec.engine.host_pool.size), int(pool.spec.tiers.memory.size)
    spec = result.template["spec"]
    agent = parse_quantity(_memory(_named(spec["initContainers"], AGENT_CONTAINER), "limits"))
    engine = _named(spec["containers"], result.engine)
    parts = [f"host pool {_said(host_pool)} in {_engine(_named(before['spec']['containers'], result.engine), engine)}"]
    own = agent - arena
    parts.append(f"agent {_said(agent)}, of it arena {_said(arena)} and {_said(own)} for itself")
    added = agent + (host_pool if pool.spec.engine.host_pool.adjust_resources else 0)
    return f"{title}: {'; '.join(parts)}; each pod asks for up to {_said(added)} more"


def _engine(before: dict[str, Any], after: dict[str, Any]) -> str:
    changes = [
        f"{kind[:-1]} {_memory(before, kind) or 'none'} → {_memory(after, kind)}"
        for kind in ("requests", "limits")
        if _memory(after, kind)
    ]
    unchanged = all(_memory(before, kind) == _memory(after, kind) for kind in ("requests", "limits"))
    if not changes:
        return f"container {after['name']}, which has neither request nor limit of memory"
    return f"container {after['name']} ({'memory as it was' if unchanged else ', '.join(changes)})"


def _memory(container: dict[str, Any], kind: str) -> str:
    return str(((container.get("resources") or {}).get(kind) or {}).get("memory", ""))


def _named(containers: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(container for container in containers if container.get("name") == name)


def _said(count: int) -> str:
    """Bytes in the largest binary unit that keeps them whole, from Mi up; else in tenths of Mi."""
    whole = format_quantity(count)
    return whole if whole.endswith(("Mi", "Gi", "Ti")) else f"{count / 2**20:.1f}Mi"
