"""The Events of a pass: what a person would want to be told once.

An Event's name is made from what it says, so a controller that was killed and tells it again meets its own Event
instead of making a second one. Events of the pool follow from the two statuses, before and after; those of a pod from
its state alone.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kvpool_contract.names import POOL_LABEL
from kvpool_contract.reasons import explain
from kvpool_operator.desired.pool import API_VERSION, KIND
from kvpool_operator.desired.status import MAX_MESSAGE, NOT_STARTED, UNREACHABLE, Member

MAX_MESSAGE_OF_AN_EVENT = 1024  # the API server's own limit
_TOLD = {  # conditions whose changes are told, and the reasons that are nothing to tell
    "ConfigValid": (),
    "Configured": ("NoMembers", "MembersFollowing", "NotMade", "NoAgentAnswers", "AllConfigured"),
    "CertificatesReady": ("NoMembers", "NoAgentAnswers", "NotKnown"),
    "TransportReady": ("NoMembers", "NoAgentAnswers", "DevicesOpening"),
    "PrefixesDeclared": ("NoMembers", "NoAgentAnswers", "PrefixesResolving"),
    "StoreReady": ("NoMembers", "NoAgentAnswers", "StoreOpening"),
    "AgentsUpdated": ("NoMembers", "Updating", "WaitingForMembers"),
    "Ready": ("NoMembers", "MembersStarting", "ConfigInvalid", "ConfigNotUsed"),
    "CacheWarm": ("NoMembers", "MembersCold"),
    "Beneficial": (),
    "Faithful": (),
}

assert MAX_MESSAGE_OF_AN_EVENT <= MAX_MESSAGE


@dataclass(frozen=True)
class Event:
    """`regarding`: reference to the object that it is about; `occasion`: tells two alike apart, and is the same
    however often it is told."""

    regarding: tuple[tuple[str, str], ...]
    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    occasion: str = ""

    @property
    def name(self) -> str:
        """The same for the same Event, whoever writes it."""
        told = "\n".join((*(value for _, value in self.regarding), self.reason, self.message, self.occasion))
        return f"{dict(self.regarding)['name'][:200]}.{hashlib.blake2b(told.encode(), digest_size=8).hexdigest()}"

    def document(self, now: str) -> dict[str, Any]:
        """The object to create. now: RFC 3339, in UTC."""
        regarding = dict(self.regarding)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": self.name, "namespace": regarding["namespace"]},
            "involvedObject": regarding,
            "type": self.type,
            "reason": self.reason,
            "message": self.message[:MAX_MESSAGE_OF_AN_EVENT],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": "kvpool-controller"},
        }


def pool_events(
    metadata: Mapping[str, Any], before: Mapping[str, Any] | None, after: Mapping[str, Any], members: Sequence[Member]
) -> list[Event]:
    """What changed between two statuses of a pool. metadata: the pool's."""
    pool = reference(API_VERSION, KIND, metadata["name"], metadata["namespace"], metadata["uid"])
    events = []
    for kind, silent in _TOLD.items():
        old, new = _condition(before or {}, kind), _condition(after, kind)
        if not new:
            continue
        good = new["status"] == "True"
        changed = (old.get("status"), old.get("reason")) != (new["status"], new["reason"])
        # what holds from the start is nothing to tell, nor that certificates come as they should
        expected = {"ConfigValid": (None,), "CertificatesReady": (None, "NoMembers", "NoAgentAnswers"),
                    "Beneficial": (None,), "Faithful": (None,)}  # fmt: skip
        accepted_at_first = good and old.get("reason") in expected.get(kind, ())
        if changed and new["reason"] not in silent and not accepted_at_first:
            reason = kind if good else f"Config{new['reason']}" if kind == "ConfigValid" else new["reason"]
            since = old.get("lastTransitionTime", "")
            wanted = good or new["reason"] == "Paused"
            events.append(Event(pool, "Normal" if wanted else "Warning", reason, new["message"], since))
    formats = [{entry["format"] for entry in (status or {}).get("formats") or []} for status in (before, after)]
    if len(formats[1]) > 1 and formats[1] != formats[0]:
        fields = ", ".join(_differing(members)) or "fields that only a newer version knows"
        events.append(
            Event(
                pool,
                "Warning",
                "FormatsDiffer",
                f"The members have {len(formats[1])} formats and share blocks within each only. They differ in: "
                f"{fields}. Give the engines the same model and options; during a rolling update this passes.",
                " ".join(sorted(formats[1])),
            )
        )
    return events


def member_events(k8s_namespace: str, pool: str, members: Sequence[Member]) -> list[Event]:
    """What is wrong with each pod, in the words of the contract's table."""
    events = []
    for member in members:
        if not member.needs_attention:
            continue
        word = member.reason
        if not member.injected:
            reason, message = "NotInjected", f"Label {POOL_LABEL}={pool}, but no agent. {explain(word)}"
        elif word in (UNREACHABLE, NOT_STARTED):
            reason = "AgentUnreachable" if word == UNREACHABLE else "AgentNotStarted"
            message = f"Pool {pool}: {explain(word)}"
        elif member.status is not None and member.status.attached:
            reason, message = "NotWarm", f"The engine takes part in pool {pool} and is not warm. {explain(word)}"
        else:
            reason, message = "EngineBare", f"The engine serves without pool {pool}. {explain(word)}"
        pod = reference("v1", "Pod", member.name, k8s_namespace, member.uid)
        events.append(Event(pod, "Warning", reason, message))
    return events


def reference(api_version: str, kind: str, name: str, k8s_namespace: str, uid: str) -> tuple[tuple[str, str], ...]:
    """To the object that an Event is about."""
    values = {"apiVersion": api_version, "kind": kind, "name": name, "namespace": k8s_namespace, "uid": uid}
    return tuple(values.items())


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next((c for c in status.get("conditions") or [] if c.get("type") == kind), {})
    return found


def _differing(members: Sequence[Member]) -> list[str]:
    """Names of the format's fields that are not the same in all members, sorted."""
    documents = [m.status.format_fields for m in members if m.status is not None and m.status.format]
    names = {name for document in documents for name in document}
    return sorted(name for name in names if any(d.get(name) != documents[0].get(name) for d in documents))
