"""What a pod's object says of its agent, before anybody has asked the agent itself.

An agent whose container has not started yet is not silent: the image may still be pulled, at first or when it is
updated in place. One that has run is expected to answer, so a crash that goes on is told as such. One that the kubelet
can't start holds the engine back, and somebody has to know. A pod that was let go bare on purpose says why in an
annotation.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kvpool_contract.names import POOL_LABEL, SKIPPED_ANNOTATION, UPDATE_ANNOTATION
from kvpool_operator.desired.trust import DISABLED, MANAGED, SECRET

IDENTITY_VOLUME = "kvpool-identity"
AGENT_CONTAINER, CLIENT_CONTAINER = "kvpool-agent", "kvpool-client"
_NO_IMAGE = "ImagePullBackOff"
# The kubelet's words for a container that does not start by itself. It changes between those of the image at every try.
STUCK = {
    "ErrImagePull": _NO_IMAGE,
    _NO_IMAGE: _NO_IMAGE,
    "ErrImageNeverPull": "ErrImageNeverPull",
    "InvalidImageName": "InvalidImageName",
    "CreateContainerConfigError": "CreateContainerConfigError",
    "CreateContainerError": "CreateContainerError",
    "RunContainerError": "RunContainerError",
}
# A group of such pods is made anew as a whole when one container of it restarts.
GROUP_LABEL = "leaderworkerset.sigs.k8s.io/name"
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Sidecar:
    """The agent as an update in place sees it: the pod's version, the image that its spec names, the id of the
    container that runs, whether the pod is ready, the uid of its owner, whether it is one of a group that is made anew
    as a whole, what was begun (see `update_begun`), and the kubelet's word for why it does not run."""

    version: str
    image: str
    container: str
    ready: bool
    owner: str
    grouped: bool
    begun: tuple[str, float] | None
    waiting: str


@dataclass(frozen=True)
class Pod:
    """A living pod of a pool. `address`: empty while it has none; `injected`: it has an agent; `expected`: the agent
    has started at least once; `stuck`: the kubelet's word for why it has not and won't by itself; `skipped`: the reason
    that was given where it has none; `sidecar`: more of the agent, where it has one; `tls`: the mode that it was made
    for."""

    name: str
    uid: str
    address: str
    injected: bool
    expected: bool
    skipped: str = ""
    stuck: str = ""
    sidecar: Sidecar | None = None
    tls: str = DISABLED
    k8s_namespace: str = ""
    pool: str = ""


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
    begun = update_begun(metadata)
    sidecar, changing = _sidecar(document, agent, begun), begun is not None and not agent.get("started")
    expected = bool(agent.get("started") or (agent.get("restartCount") and not changing))
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        address=status.get("podIP") or "",
        injected=sidecar is not None,
        expected=expected,
        skipped=(metadata.get("annotations") or {}).get(SKIPPED_ANNOTATION, ""),
        stuck="" if expected else _waiting(agent) if changing else _stuck(agent) or _stuck(copier),
        sidecar=sidecar,
        tls=_tls(spec.get("volumes") or []),
        k8s_namespace=metadata.get("namespace", ""),
        pool=(metadata.get("labels") or {}).get(POOL_LABEL, ""),
    )


def update_begun(metadata: Mapping[str, Any]) -> tuple[str, float] | None:
    """The id of the container that ran when another image was written, and when, in seconds since 1970; None where none
    was, or somebody has written over it."""
    try:
        fields = json.loads((metadata.get("annotations") or {})[UPDATE_ANNOTATION])
        return str(fields["container"]), datetime.fromisoformat(fields["at"]).timestamp()
    except (KeyError, ValueError, TypeError):
        return None


def _sidecar(document: Mapping[str, Any], said: Mapping[str, Any], begun: tuple[str, float] | None) -> Sidecar | None:
    """said: the kubelet of the agent's container."""
    metadata, status = document["metadata"], document.get("status") or {}
    found = [c for c in (document.get("spec") or {}).get("initContainers") or [] if c.get("name") == AGENT_CONTAINER]
    if not found:
        return None
    state = said.get("state") or {}
    return Sidecar(
        version=metadata.get("resourceVersion", ""),
        image=found[0].get("image", ""),
        container=said.get("containerID") or "" if "running" in state else "",
        ready=any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or []),
        owner=next((o["uid"] for o in metadata.get("ownerReferences") or [] if o.get("controller")), metadata["uid"]),
        grouped=GROUP_LABEL in (metadata.get("labels") or {}),
        begun=begun,
        waiting=(state.get("waiting") or {}).get("reason", ""),
    )


def _tls(volumes: list[Mapping[str, Any]]) -> str:
    """From what the injector has given the agent to prove itself by: the pool may say something else by now."""
    identity = next((v for v in volumes if v.get("name") == IDENTITY_VOLUME), None)
    if identity is None:
        return DISABLED
    return SECRET if "secret" in identity else MANAGED


def _stuck(container: Mapping[str, Any]) -> str:
    """Also for one that failed and is being tried again."""
    if word := _waiting(container):
        return word
    done = ((container.get("state") or {}).get("terminated") or {}).get("exitCode") == 0
    return "CrashLoopBackOff" if container.get("restartCount") and not done else ""


def _waiting(container: Mapping[str, Any]) -> str:
    return STUCK.get(((container.get("state") or {}).get("waiting") or {}).get("reason", ""), "")
