"""What a pod's object says of its agent, before anybody has asked the agent itself.

An agent whose container has not started yet is not silent: the image may still be pulled. One that has run is
expected to answer, so a crash that goes on is told as such. One that the kubelet can't start holds the engine back, and
somebody has to know. A pod that was let go bare on purpose says why in an annotation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvpool_contract.names import SKIPPED_ANNOTATION

AGENT_CONTAINER, CLIENT_CONTAINER = "kvpool-agent", "kvpool-client"
_NO_IMAGE = "ImagePullBackOff"
# The kubelet's words for a container that does not start by itself. It changes between those of the image at every try.
_STUCK = {
    "ErrImagePull": _NO_IMAGE,
    _NO_IMAGE: _NO_IMAGE,
    "ErrImageNeverPull": "ErrImageNeverPull",
    "InvalidImageName": "InvalidImageName",
    "CreateContainerConfigError": "CreateContainerConfigError",
    "CreateContainerError": "CreateContainerError",
    "RunContainerError": "RunContainerError",
}
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Pod:
    """A living pod of a pool. `address`: empty while it has none; `injected`: it has an agent; `expected`: the agent
    has started at least once; `stuck`: the kubelet's word for why it has not and won't by itself; `skipped`: the reason
    that was given where it has none."""

    name: str
    uid: str
    address: str
    injected: bool
    expected: bool
    skipped: str = ""
    stuck: str = ""


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
    agent, copier = states.get(AGENT_CONTAINER, {}), states.get(CLIENT_CONTAINER, {})
    expected = bool(agent.get("started") or agent.get("restartCount"))
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        address=status.get("podIP") or "",
        injected=any(c.get("name") == AGENT_CONTAINER for c in spec.get("initContainers") or []),
        expected=expected,
        skipped=(metadata.get("annotations") or {}).get(SKIPPED_ANNOTATION, ""),
        stuck="" if expected else _stuck(agent) or _stuck(copier),
    )


def _stuck(container: Mapping[str, Any]) -> str:
    """Also for one that failed and is being tried again."""
    state = container.get("state") or {}
    if word := _STUCK.get((state.get("waiting") or {}).get("reason", "")):
        return word
    done = (state.get("terminated") or {}).get("exitCode") == 0
    return "CrashLoopBackOff" if container.get("restartCount") and not done else ""
