"""The status of a pool: what its pods and their agents say, rounded, as conditions, counts and a phase.

A function of the pool, of what was observed, of the status before and of the time; the time only dates a condition
that changes. So a pass that saw nothing new yields the status that is there, and nothing is written: everything here
is a count of members, a percentage or a word, never a figure that moves by itself.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from kvpool_contract.names import POOL_LABEL
from kvpool_contract.reasons import explain
from kvpool_contract.status import AgentStatus, ConfigInForce
from kvpool_operator.desired import publication, stores
from kvpool_operator.desired.benefit import beneficial
from kvpool_operator.desired.canary import faithful
from kvpool_operator.desired.heard import MAX_NAMED, few
from kvpool_operator.desired.objects import pool_field
from kvpool_operator.desired.status_fields import (
    MAX_FORMATS,
    Condition,
    ConditionType,
    FormatCount,
    HitPercent,
    Phase,
    PoolStatus,
)
from kvpool_operator.desired.transports import IMPOSSIBLE, RDMA, by_rdma, why
from kvpool_operator.desired.trust import DISABLED

WARM, DEGRADED = "Ready(warm)", "Ready(degraded)"
UNREACHABLE, NOT_INJECTED = "agent_unreachable", "not_injected"
NOT_STARTED = "agent_not_started"
NOTHING_TO_DO = ("", "nothing_to_warm", "paused", "resumed")  # reasons about which nobody has to do anything
FORMAT_DIGITS = 8
MAX_MESSAGE = 2048
LAST_MOMENT = 253402300799.0  # of the year 9999, the last one that a date can say

UNPROVED = {  # states of a member's certificate that keep the condition from holding, and what they are called there
    "no_certificate": ("NoCertificate", "no_certificate"),
    "expired": ("Expired", "certificate_expired"),
    "expires_soon": ("ExpiresSoon", "certificate_expires_soon"),
}

# what members whose own certificate is good say beside it, and what that is called in the condition
BESIDE = {
    "ClockSkew": ("clock_behind", "peer_certificate_not_yet_valid", "peer_certificate_expired"),
    "CertificateNotUsed": ("certificate_files", "certificate_name"),  # what has come in its place
}


@dataclass(frozen=True)
class Member:
    """A living pod with the pool's label. `injected`: it has an agent, else `skipped` may say why not; `expected`:
    its agent has run, so it should answer; `status`: its answer, or None and the `error`; `stuck`: the kubelet's word
    for why the agent can't start; `tls`: the mode that its pod was made for."""

    name: str
    uid: str
    injected: bool = True
    expected: bool = True
    status: AgentStatus | None = None
    error: str = ""
    skipped: str = ""
    stuck: str = ""
    tls: str = DISABLED

    @property
    def ready(self) -> bool:
        return self.status is not None and self.status.state in (WARM, DEGRADED)

    @property
    def warm(self) -> bool:
        return self.status is not None and self.status.state == WARM

    @property
    def reason(self) -> str:
        """Why it is not, or not warm, what it should be: a word of the contract's table, or nothing."""
        if not self.injected:
            return self.skipped or NOT_INJECTED
        if self.status is None:
            return UNREACHABLE if self.expected else NOT_STARTED if self.stuck else ""
        return self.status.reason if self.status.state == DEGRADED else ""

    @property
    def needs_attention(self) -> bool:
        """A person could do something about it."""
        return self.reason not in NOTHING_TO_DO

    @property
    def config(self) -> ConfigInForce:
        return self.status.config if self.status is not None else ConfigInForce()


@dataclass(frozen=True)
class Observed:
    """What one pass found out. `invalid`: why the spec can't be used; `refused`: why an object of the pool could
    not be made (a reason of the Ready condition, and a sentence); `document`: the hash of the configuration that lies
    where agents find it, empty where there is none; `paused`: the pool is to be; `update`: how far the update of its
    agents in place has come, where it is asked for; `apart`: uids of members of which the first does not reach the
    second; `tls`: the mode of its certificates, empty where nobody knows; `rotating`: a new authority waits to sign;
    `transport`: the type that is asked for; `store`: whether there is to be an external one;
    `prefixes`: what is wrong with the declared ones, empty where nothing is, None where the policy is another."""

    members: Sequence[Member] = ()
    invalid: str = ""
    refused: tuple[str, str] = ("", "")
    document: str = ""
    paused: bool = False
    update: tuple[bool, str, str] | None = None
    apart: Sequence[tuple[str, str]] = ()
    tls: str = ""
    rotating: bool = False
    transport: str = ""
    store: bool = False
    prefixes: str | None = None


def pool_status(
    name: str, generation: int, observed: Observed, before: Mapping[str, Any] | None, now: str
) -> dict[str, Any]:
    """The whole status, as it is written. before: the status that is there; now: RFC 3339, in UTC."""
    members, total = observed.members, len(observed.members)
    ready, warm = sum(m.ready for m in members), sum(m.warm for m in members)
    agents = _agents(name, members, observed.apart)
    configuration = _configuration(name, observed)
    transport = _transport(name, observed) if observed.transport == RDMA else None
    overall = _overall(observed, agents, configuration, transport, ready)
    phase: Phase = "Ready" if overall[0] else _PHASES.get(overall[1], "Degraded")
    told: dict[ConditionType, _Verdict] = {
        "ConfigValid": (not observed.invalid, "Invalid", observed.invalid)
        if observed.invalid
        else (True, "Accepted", "The spec is accepted."),
        "Configured": configuration,
        "CertificatesReady": _certificates(name, observed),
        "AgentsReady": agents,
        "CacheWarm": _warmth(name, members, warm),
        "Ready": overall,
    }
    if transport is not None:
        told["TransportReady"] = transport
    if observed.store:
        told["StoreReady"] = _store(name, observed)
    if observed.prefixes is not None:
        told["PrefixesDeclared"] = _prefixes(name, observed, observed.prefixes)
    if observed.update is not None:
        told["AgentsUpdated"] = observed.update
    answers = [m.status for m in members if m.status is not None]
    if (benefit := beneficial(answers)) is not None:
        told["Beneficial"] = benefit
    if (fidelity := faithful(answers, {m.uid: m.name for m in members})) is not None:
        told["Faithful"] = fidelity
    status = PoolStatus(
        observed_generation=generation,
        phase=phase,
        ready=f"{ready}/{total}",
        warm=f"{warm}/{total}",
        configured=f"{sum(_follows(m, observed.document) for m in members)}/{total}",
        tls=observed.tls,
        certificates_expire=_first_end(members),
        hit_percent=_hits(members),
        formats=_formats(members),
        conditions=[_condition(kind, verdict, generation, before or {}, now) for kind, verdict in told.items()],
    )
    built: dict[str, Any] = msgspec.to_builtins(status)
    return built


_Verdict = tuple[bool, str, str]  # holds, reason, message
_PHASES: dict[str, Phase] = {"NoMembers": "Pending", "MembersStarting": "Pending", "Paused": "Paused"}


def _agents(name: str, members: Sequence[Member], apart: Sequence[tuple[str, str]]) -> _Verdict:
    total = len(members)
    if not members:
        return _no_members(name)
    if found := [m for m in members if not m.injected]:
        return False, "NotInjected", f"{len(found)} of {total}: {named(found)}. {_reasons(found)}"
    if found := [m for m in members if m.reason == NOT_STARTED]:
        words = ", ".join(sorted({m.stuck for m in found}))
        return False, "AgentsNotStarted", f"{len(found)} of {total}: {named(found)} ({words}). {explain(NOT_STARTED)}"
    if found := [m for m in members if m.reason == UNREACHABLE]:
        errors = "; ".join(dict.fromkeys(m.error for m in found))
        sentence = f"{len(found)} of {total}: {named(found)} ({errors}). {explain(UNREACHABLE)}"
        return False, "AgentsUnreachable", sentence
    if waiting := [m for m in members if not m.ready]:
        return False, "MembersStarting", f"{len(waiting)} of {total} start or warm up: {named(waiting)}."
    if apart:
        return False, "MembersApart", _apart(members, apart)
    return True, "AllReady", f"{total} of {total} agents are ready."


def _apart(members: Sequence[Member], pairs: Sequence[tuple[str, str]]) -> str:
    names = {m.uid: m.name for m in members}
    told = [f"{names[one]} does not reach {names[other]}" for one, other in pairs[:MAX_NAMED]]
    more = f", and so {len(pairs) - MAX_NAMED} pairs more" if len(pairs) > MAX_NAMED else ""
    return f"{', '.join(told)}{more}. {explain('members_apart')}"


def _warmth(name: str, members: Sequence[Member], warm: int) -> _Verdict:
    if not members:
        return _no_members(name)
    if warm == len(members):
        return True, "AllWarm", f"{warm} of {warm} members hold their hot set."
    cold = _reasons([m for m in members if not m.warm])
    return False, "MembersCold", f"{warm} of {len(members)} members hold their hot set. {cold}"


def _no_members(name: str) -> _Verdict:
    return False, "NoMembers", f"No pod of this namespace carries the label {POOL_LABEL}={name}."


def _unheard(name: str, observed: Observed) -> _Verdict | None:
    """Where no agent says anything, that."""
    if not observed.members:
        return _no_members(name)
    if all(m.status is None for m in observed.members):
        return False, "NoAgentAnswers", "No agent answers; the condition AgentsReady says why."
    return None


def _configuration(name: str, observed: Observed) -> _Verdict:
    """Of the agents that answer; those that don't are told of elsewhere."""
    members, total = [m for m in observed.members if m.status is not None], len(observed.members)
    if unheard := _unheard(name, observed):
        return unheard
    if found := [m for m in members if m.config.reason]:
        problems = "; ".join(dict.fromkeys(m.config.problem for m in found))
        sentence = f"{len(found)} of {total}: {named(found)} ({problems}). {explain(found[0].config.reason)}"
        return False, "ConfigNotUsed", sentence
    if found := [m for m in members if m.config.needs_new_pods]:
        fields = ", ".join(sorted({pool_field(path) for m in found for path in m.config.needs_new_pods}))
        sentence = f"{len(found)} of {total} run with former values of {fields}: {named(found)}."
        return False, "NeedsNewPods", f"{sentence} Make them anew, as `kubectl rollout restart` of their workload does."
    if not observed.document:
        return False, "NotMade", "The pool's ConfigMap is not there; agents go on with what they have."
    if found := [m for m in members if not _follows(m, observed.document)]:
        sentence = f"{len(found)} of {total} go on with a former one until the kubelet has brought the present one"
        return False, "MembersFollowing", f"{sentence}: {named(found)}."
    return True, "AllConfigured", f"{len(members)} of {total} agents have taken over the present configuration."


def _certificates(name: str, observed: Observed) -> _Verdict:
    """Of the agents that answer; those that don't are told of elsewhere."""
    members, total = [m for m in observed.members if m.status is not None], len(observed.members)
    if not observed.tls:
        return False, "NotKnown", "The spec can't be used, so nobody knows; the condition ConfigValid says why."
    if observed.tls == DISABLED:
        sentence = "transport.tls.mode is Disabled, as asked for: members prove nothing to each other, and all bytes go"
        return False, "Disabled", f"{sentence} in clear."
    if unheard := _unheard(name, observed):
        return unheard
    if found := [m for m in members if m.tls == DISABLED]:
        sentence = f"{len(found)} of {total} were made without certificates and speak in clear: {named(found)}."
        return False, "InClear", f"{sentence} Make them anew, as `kubectl rollout restart` of their workload does."
    for state, (reason, word) in UNPROVED.items():
        if found := [m for m in members if m.status is not None and m.status.tls.state == state]:
            return False, reason, _said(found, total, word)
    for reason, words in BESIDE.items():
        for word in words:
            if found := [m for m in members if m.status is not None and m.status.tls.reason == word]:
                return False, reason, _said(found, total, word)
    if observed.rotating:
        return True, "Rotating", "A new authority of the members signs as soon as every agent of every pool trusts it."
    return True, "AllCertified", f"{len(members)} of {total} agents have a certificate."


def _said(found: Sequence[Member], total: int, word: str) -> str:
    details = "; ".join(sorted({m.status.tls.detail for m in found if m.status and m.status.tls.detail}))
    told = f" ({details})" if details else ""
    return f"{len(found)} of {total}: {named(found)}{told}. {explain(word)}"


def _first_end(members: Sequence[Member]) -> str:
    """In whole hours: with each certificate that is renewed alone another text, and another status to write."""
    ends = [m.status.tls.not_after for m in members if m.status is not None and m.status.tls.not_after > 0]
    if not ends:
        return ""
    return datetime.fromtimestamp(min(*ends, LAST_MOMENT), UTC).strftime("%Y-%m-%dT%H:00:00Z")


def _transport(name: str, observed: Observed) -> _Verdict:
    if unheard := _unheard(name, observed):
        return unheard
    found, looking = by_rdma(observed.members)
    total = len(observed.members)
    if found:
        told = why([m.status.transport for m in found if m.status is not None])
        return False, IMPOSSIBLE, f"{len(found)} of {total} go on over TCP: {named(found)}. {told}"
    if looking:
        return False, "DevicesOpening", f"{len(looking)} of {total} are opening their RDMA devices: {named(looking)}."
    return True, "AllByRdma", f"Every agent that answers, of {total}, has an RDMA device in use."


def _store(name: str, observed: Observed) -> _Verdict:
    if unheard := _unheard(name, observed):
        return unheard
    found, opening = stores.without_store(observed.members)
    total = len(observed.members)
    if found:
        return False, stores.NOT_REACHED, f"{len(found)} of {total}: {named(found)}. {stores.why(found)}"
    if opening:
        return False, stores.OPENING, f"{len(opening)} of {total} have not reached the store yet: {named(opening)}."
    return True, "AllReachStore", f"Every agent that answers, of {total}, reaches the external store."


def _prefixes(name: str, observed: Observed, problem: str) -> _Verdict:
    if problem:
        return False, publication.NOT_FOUND, problem
    return _unheard(name, observed) or publication.verdict(observed.members, named)


def _follows(member: Member, document: str) -> bool:
    return bool(document) and member.config.hash == document and not member.config.reason


def _overall(
    observed: Observed, agents: _Verdict, configuration: _Verdict, transport: _Verdict | None, ready: int
) -> _Verdict:
    if observed.invalid:
        return False, "ConfigInvalid", observed.invalid
    if observed.refused[0]:
        return False, *observed.refused
    if observed.update is not None and observed.update[1] == "UpdateStopped":
        return observed.update
    if troubled := [m for m in observed.members if m.needs_attention]:
        sentence = f"{len(troubled)} of {len(observed.members)}: {named(troubled)}. {_reasons(troubled)}"
        return False, "MembersDegraded", sentence
    if configuration[1] == "ConfigNotUsed":
        return configuration
    if observed.apart:
        return False, "MembersApart", _apart(observed.members, observed.apart)
    if transport is not None and transport[1] == IMPOSSIBLE:
        return transport
    if observed.paused:
        paused = sum(m.reason == "paused" for m in observed.members)
        return False, "Paused", f"{paused} of {len(observed.members)} members are paused. {explain('paused')}"
    if not ready:
        return False, agents[1], agents[2]
    return True, "MembersReady", f"{ready} of {len(observed.members)} agents are ready."


def _hits(members: Sequence[Member]) -> HitPercent | None:
    answers = [m.status.hits for m in members if m.status is not None]
    local, shared = sum(h.local_blocks for h in answers), sum(h.shared_blocks for h in answers)
    asked = local + shared + sum(h.computed_blocks for h in answers)
    if not asked:
        return None
    return HitPercent(
        local=_percent(local, asked), shared=_percent(shared, asked), total=_percent(local + shared, asked)
    )


def _formats(members: Sequence[Member]) -> list[FormatCount]:
    counts = Counter(m.status.format for m in members if m.status is not None and m.status.format)
    return [FormatCount(format=f[:FORMAT_DIGITS], members=n) for f, n in _ranked(counts)[:MAX_FORMATS]]


def _condition(
    kind: ConditionType, verdict: _Verdict, generation: int, before: Mapping[str, Any], now: str
) -> Condition:
    holds, reason, message = verdict
    status: Literal["True", "False"] = "True" if holds else "False"
    last: Mapping[str, Any] = next((c for c in before.get("conditions") or [] if c.get("type") == kind), {})
    same = last.get("status") == status and last.get("lastTransitionTime")
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…",
        last_transition_time=last["lastTransitionTime"] if same else now,
        observed_generation=generation,
    )


def named(members: Sequence[Member]) -> str:
    """Some of their names, and how many there are more."""
    return few(sorted(m.name for m in members))


def _reasons(members: Sequence[Member]) -> str:
    """How many of these members have each reason, and what it means."""
    counts = Counter(m.reason for m in members)
    return " ".join(f"{n} {explain(word) if word else 'still starting or warming.'}" for word, n in _ranked(counts))


def _ranked(counts: "Counter[str]") -> list[tuple[str, int]]:
    """The most frequent first, equal ones by name: an order that no pass changes."""
    return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))


def _percent(part: int, whole: int) -> int:
    return (100 * part + whole // 2) // whole
