"""What a pod's object says of its agent, before anybody has asked the agent itself.

An agent whose container has not started yet is not silent: the image may still be pulled. One that has run is
expected to answer, so a crash that goes on is told as such. A pod that was let go bare on purpose says why in an
annotation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

AGENT_CONTAINER = "kvpool-agent"
SKIPPED_ANNOTATION = "kvpool.io/skipped"
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Pod:
    """A living pod of a pool. `address`: empty while it has none; `injected`: it has an agent; `expected`: the agent
    has started at least once; `skipped`: the reason that was given where it has none."""

    name: str
    uid: str
    address: str
    injected: bool
    expected: bool
    skipped: str = ""


def living(objects: list[dict[str, Any]]) -> list[Pod]:
    """The pods that neither have ended nor are about to, by name."""
    pods = [
        _pod(o)
        for o in objects
        if not o["metadata"].get("deletionTimestamp") and (o.get("status") or {}).get("phase") not in _ENDED
    ]
    return sorted(pods, key=lambda pod: pod.name)


def _pod(document: Mapping[str, Any]) -> Pod:
    metadata, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    states = {s.get("name"): s for s in status.get("initContainerStatuses") or []}
    agent = states.get(AGENT_CONTAINER, {})
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        address=status.get("podIP") or "",
        injected=any(c.get("name") == AGENT_CONTAINER for c in spec.get("initContainers") or []),
        expected=bool(agent.get("started") or agent.get("restartCount")),
        skipped=(metadata.get("annotations") or {}).get(SKIPPED_ANNOTATION, ""),
    )
