"""Which agent is given another image next, of a pool whose agents are updated in place.

The image is the one thing of a container that can be changed in a pod that runs; the kubelet then ends this container
and starts it anew, and the engine beside it runs on. Meanwhile the pod is not ready, and what its arena held is gone.
So it is done to one pod at a time, only while every other member is ready, never to the last ready pod of a workload;
and the next one waits until this one is ready again, its engine attached and the hot set in, as far as anybody has it.
One that does not come back ends it: nothing else is touched until that one is well.

All of it is read from the pods as they are: what was begun stands in an annotation that is written with the image, so a
controller that is killed goes on where it was, and a list that is older than the last change begins nothing twice.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from kvpool_contract.reasons import explain
from kvpool_operator.desired.events import Event, reference
from kvpool_operator.desired.pods import STUCK, Pod, Sidecar
from kvpool_operator.desired.status import NOTHING_TO_DO, Member, named

RUN_SECONDS = 60  # for a container to run: the kubelet does not say in the status that it can't pull the image
START_SECONDS = 300  # for starting, besides what the pool allows for warming
_FAILED = (*STUCK, "CrashLoopBackOff")


@dataclass(frozen=True)
class Patience:
    """How long a member may take to warm: so many seconds, or, where the pool blocks, for as long as it does."""

    seconds: float
    blocks: bool = False


@dataclass(frozen=True)
class Change:
    """A pod whose agent is to get `image`. `version` is the object's that this was decided from, `container` the id of
    the one that runs."""

    pod: str
    uid: str
    image: str
    former: str
    version: str
    container: str


@dataclass(frozen=True)
class Step:
    """How far the update has come, as a condition's status, reason and message, and what is to be done now, if
    anything."""

    verdict: tuple[bool, str, str]
    change: Change | None = None


@dataclass(frozen=True)
class _Agent:
    """A member, and its pod's sidecar."""

    member: Member
    sidecar: Sidecar

    @property
    def name(self) -> str:
        return self.member.name

    @property
    def warms(self) -> bool:
        return self.member.status is not None and self.member.status.state == "Warming"

    @property
    def is_back(self) -> bool:
        """After an update: another container, ready, its engine attached, and nothing to complain of."""
        member, sidecar = self.member, self.sidecar
        if sidecar.begun is None:
            return True
        if sidecar.container in ("", sidecar.begun[0]) or not sidecar.ready or member.status is None:
            return False
        return member.status.attached and member.ready and member.reason in NOTHING_TO_DO


def next_step(pods: Sequence[Pod], members: Sequence[Member], image: str, patience: Patience, now: float) -> Step:
    """pods: those of `members`; image: what every agent should run; now: seconds since 1970."""
    sidecars = {pod.uid: pod.sidecar for pod in pods}
    agents = [_Agent(m, found) for m in members if (found := sidecars.get(m.uid)) is not None]
    agents.sort(key=lambda agent: agent.name)
    if not agents:
        return Step((False, "NoMembers", "No pod of the pool has an agent."))
    done = f"{sum(a.sidecar.image == image for a in agents)} of {len(agents)} agents run {image}."
    if away := [a for a in agents if not a.is_back]:
        if wrong := [a for a in away if a.sidecar.image != image]:  # one that is away costs nothing more
            return Step(_updating(done, wrong[0]), _change(wrong[0], image))
        return Step(_judged(done, away[0], patience, now))
    wanting = [a for a in agents if a.sidecar.image != image]
    if not wanting:
        return Step((True, "AllUpdated", done))
    if unready := [a for a in agents if not a.sidecar.ready]:
        sentence = f"{done} Nothing is touched until all members are ready: {_named(unready)} is not."
        return Step((False, "WaitingForMembers", sentence))
    for agent in wanting:
        alone = sum(a.sidecar.owner == agent.sidecar.owner for a in agents) == 1
        if not (agent.sidecar.grouped or alone or agent.member.needs_attention):
            return Step(_updating(done, agent), _change(agent, image))
    sentence = (
        f"{done} {_named(wanting)} is left alone: it is of a LeaderWorkerSet, the one ready pod of its workload, or "
        f"needs attention as it is. Make it anew when it suits you."
    )
    return Step((False, "LeftAlone", sentence))


def annotation(change: Change, now: str) -> str:
    """What is written with the image. now: RFC 3339, in UTC."""
    return json.dumps({"container": change.container, "at": now}, separators=(",", ":"))


def change_event(k8s_namespace: str, change: Change) -> Event:
    pod = reference("v1", "Pod", change.pod, k8s_namespace, change.uid)
    message = f"The agent's image is changed in place from {change.former} to {change.image}; the engine runs on."
    return Event(pod, "Normal", "AgentUpdated", message, change.container)


def _updating(done: str, agent: _Agent) -> tuple[bool, str, str]:
    return False, "Updating", f"{done} {agent.name} is being updated; the others follow one by one."


def _judged(done: str, agent: _Agent, patience: Patience, now: float) -> tuple[bool, str, str]:
    """Of an agent that has its image and is not back: that it takes its time, or has failed."""
    member, sidecar = agent.member, agent.sidecar
    assert sidecar.begun
    said, waited, runs = "", now - sidecar.begun[1], sidecar.container not in ("", sidecar.begun[0])
    if sidecar.waiting in _FAILED or (not runs and waited > RUN_SECONDS):
        said = f"its container does not run ({sidecar.waiting or 'see the Events of the pod'})."
    elif sidecar.ready and runs and member.status and member.needs_attention:
        said = explain(member.reason)
    elif waited > START_SECONDS + patience.seconds and not (patience.blocks and agent.warms):
        said = explain(member.reason) if member.reason else "it is not ready."
    if not said:
        return _updating(done, agent)
    return (
        False,
        "UpdateStopped",
        (
            f"{done} {agent.name} has not come back with it: {said} No other pod is touched. Name another image in "
            f"spec.agent.image, which this pod gets first; or delete the pod."
        ),
    )


def _change(agent: _Agent, image: str) -> Change:
    sidecar = agent.sidecar
    return Change(agent.name, agent.member.uid, image, sidecar.image, sidecar.version, sidecar.container)


def _named(agents: Sequence[_Agent]) -> str:
    return named([agent.member for agent in agents])
