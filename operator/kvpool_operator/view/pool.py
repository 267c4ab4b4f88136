"""What a pool's page shows: members and their warm-up, what requests waited, what they missed, what sharing brings."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvpool_contract.reasons import explain
from kvpool_contract.status import PLACES, AgentStatus, Quantiles, Warm
from kvpool_operator.desired.benefit import TERMS as SPENT
from kvpool_operator.desired.status import FORMAT_DIGITS, Member
from kvpool_operator.view.charts import Line, Span, over_time, spans
from kvpool_operator.view.figures import NOTHING, percent, seconds, size
from kvpool_operator.view.markup import Inside, Markup, document, joined, table, tag
from kvpool_operator.view.style import STYLE

EVERY_SECONDS = 10  # a page is loaded anew
LEAST_SECONDS = 1e-4  # that a chart shows; the table says what was measured
KINDS = {
    "cold": "computed from the start",
    "local": "found at the replica",
    "remote": "loaded from another replica",
    "fallback": "to be loaded, and computed",
}
TERMS = {
    "saved": "computing that loading has spared",
    **SPENT,
    "waiting": "left for requests: spared waiting for the first token",
    "gpu": "left for engines: spared time",
}


@dataclass(frozen=True)
class Moment:
    """What sharing had brought lately, at a time (seconds since the epoch): of requests' waiting, of engines' time."""

    at: float
    waiting: float
    gpu: float


@dataclass(frozen=True)
class Seen:
    """What the last pass over a pool saw, when, and the benefit at passes before: at most one a minute."""

    at: float
    status: Mapping[str, Any]
    members: Sequence[Member]
    moments: Sequence[Moment] = ()


def pool_list(pools: Mapping[tuple[str, str], Seen], now: float) -> str:
    """The page that names all pools. now: seconds since the epoch."""
    rows = [
        (tag("a", f"{k8s_namespace}/{name}", href=f"/{k8s_namespace}/{name}"), *_summary(seen.status), _ago(seen, now))
        for (k8s_namespace, name), seen in sorted(pools.items())
    ]
    body = table(("POOL", "PHASE", "READY", "WARM", "HIT", "SEEN"), rows) if rows else tag("p", "No pool was seen yet.")
    return document("kvpool", EVERY_SECONDS, STYLE, tag("h1", "Pools"), body)


def pool_page(k8s_namespace: str, name: str, seen: Seen, now: float) -> str:
    """The page of one pool. now: seconds since the epoch."""
    statuses = [member.status for member in seen.members if member.status is not None]
    phase, ready, warm, hit = _summary(seen.status)
    title = f"{k8s_namespace}/{name}"
    return document(
        title,
        EVERY_SECONDS,
        STYLE,
        tag("p", tag("a", "all pools", href="/")),
        tag("h1", title),
        tag("p", f"{phase}. Ready {ready}, warm {warm}, hits {hit}. Seen {_ago(seen, now)}."),
        _conditions(seen.status),
        tag("h2", "Members"),
        _members(seen.members),
        tag("h2", "Time to the first token"),
        _first_token(statuses),
        tag("h2", "Prompt blocks found, by place"),
        _places(statuses),
        tag("h2", "Misses by reason"),
        _misses(statuses),
        tag("h2", "What sharing brings"),
        _benefit(statuses, seen.moments),
    )


def _summary(status: Mapping[str, Any]) -> tuple[str, str, str, str]:
    hits = status.get("hitPercent") or {}
    return (
        str(status.get("phase", NOTHING)),
        str(status.get("ready", NOTHING)),
        str(status.get("warm", NOTHING)),
        f"{hits['total']}%" if "total" in hits else NOTHING,
    )


def _ago(seen: Seen, now: float) -> str:
    return f"{max(0.0, now - seen.at):.0f} s ago"


def _conditions(status: Mapping[str, Any]) -> Markup:
    rows = [
        tag(
            "tr",
            *(tag("td", str(each.get(field, ""))) for field in ("type", "status", "reason", "message")),
            class_="bad" if each.get("status") == "False" else "good",
        )
        for each in status.get("conditions") or []
    ]
    return tag("table", tag("tbody", *rows), id="conditions")


def _members(members: Sequence[Member]) -> Markup:
    titles = ("MEMBER", "STATE", "WARM-UP", "LOCAL", "SHARED", "COMPUTED", "ARENA", "FORMAT", "REASON")
    rows = [_member(member) for member in sorted(members, key=lambda member: member.name)]
    return table(titles, rows) if rows else tag("p", "No pod has the pool's label.")


def _member(member: Member) -> Sequence[Inside]:
    reason = explain(member.reason) if member.reason else NOTHING
    status = member.status
    if status is None:
        return (member.name, *[NOTHING] * 7, f"{reason} {f'({member.error})' if member.error else ''}".strip())
    hits, arena = status.hits, status.arena
    asked = hits.local_blocks + hits.shared_blocks + hits.computed_blocks
    found = (percent(part, asked) for part in (hits.local_blocks, hits.shared_blocks, hits.computed_blocks))
    arena_used = f"{size(arena.used_bytes)}/{size(arena.limit_bytes)}"
    return (
        member.name,
        status.state,
        _warm_up(status.warm),
        *found,
        arena_used,
        status.format[:FORMAT_DIGITS] or NOTHING,
        reason,
    )


def _warm_up(warm: Warm) -> Inside:
    if not warm.planned_blocks:
        return NOTHING
    bar = tag("progress", value=warm.loaded_blocks, max=warm.planned_blocks)
    part = percent(warm.loaded_blocks, warm.planned_blocks)
    told = f" {part} of {warm.planned_blocks} blocks, {size(warm.bytes)} in {seconds(warm.seconds)}"
    return joined([bar, told])


def _first_token(statuses: Sequence[AgentStatus]) -> Markup:
    """By cache namespace and kind: the bar reaches from the lowest 5 % of any member to the highest 95 % of any; each
    mark is a member's median."""
    parts: list[Markup] = []
    for name in sorted({name for status in statuses for name in status.first_token}):
        measured = {
            kind: [q for s in statuses if (q := s.first_token.get(name, {}).get(kind, Quantiles())).count]
            for kind in KINDS
        }
        rows = [_span(kind, found) for kind, found in measured.items() if found]
        if not rows:
            continue
        if name:
            parts.append(tag("h3", name))
        parts.append(spans(rows))
        titles = ("KIND", "WHAT", "REQUESTS", "LOWEST 5 %", "MEDIANS", "HIGHEST 95 %")
        parts.append(table(titles, [_quantiles(kind, found) for kind, found in measured.items()]))
    return joined(parts) if parts else tag("p", "No request's first token was measured yet.")


def _span(kind: str, found: Sequence[Quantiles]) -> Span:
    low, high = min(q.p05 for q in found), max(q.p95 for q in found)
    shown = [max(LEAST_SECONDS, value) for value in (low, high, *(q.p50 for q in found))]
    return Span(kind, shown[0], shown[1], shown[2:])


def _quantiles(kind: str, found: Sequence[Quantiles]) -> Sequence[Inside]:
    if not found:
        return kind, KINDS[kind], 0, NOTHING, NOTHING, NOTHING
    medians = sorted({seconds(low) for low in (min(q.p50 for q in found), max(q.p50 for q in found))})
    return (
        kind,
        KINDS[kind],
        sum(q.count for q in found),
        seconds(min(q.p05 for q in found)),
        " to ".join(medians),
        seconds(max(q.p95 for q in found)),
    )


def _places(statuses: Sequence[AgentStatus]) -> Markup:
    rows = []
    for place in PLACES:
        local = sum(s.hits.local_by_place.get(place, 0) for s in statuses)
        shared = sum(s.hits.shared_by_place.get(place, 0) for s in statuses)
        if local or shared:
            rows.append((place, local, shared))
    computed = tag("p", f"{sum(s.hits.computed_blocks for s in statuses)} blocks were computed.")
    return joined(
        [table(("PLACE", "ONCE COMPUTED HERE", "BY ANOTHER REPLICA"), rows), computed] if rows else [computed]
    )


def _misses(statuses: Sequence[AgentStatus]) -> Markup:
    counts: Counter[str] = Counter()
    for status in statuses:
        counts.update(status.misses)
    total = sum(counts.values())
    if not total:
        return tag("p", "No block was looked up in vain.")
    rows = [
        (word, blocks, percent(blocks, total), explain(word).removeprefix(f"{word}: "))
        for word, blocks in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
        if blocks
    ]
    return table(("REASON", "BLOCKS", "PART", "WHAT IT MEANS"), rows)


def _benefit(statuses: Sequence[AgentStatus], moments: Sequence[Moment]) -> Markup:
    loads = sum(status.benefit.loads for status in statuses)
    sums = {term: sum(getattr(status.benefit, term) for status in statuses) for term in TERMS}
    if not loads and not any(sums.values()):
        return tag("p", "No request has loaded from another replica yet.")
    rows = [(term, f"{sums[term]:+.1f} s", words) for term, words in TERMS.items()]
    parts: list[Inside] = [
        tag("p", f"Of {loads} requests that have loaded; an hour ago weighs a 64th. Below 0 it cost more."),
        table(("TERM", "LATELY", "WHAT IT IS"), rows),
    ]
    if len(moments) > 1:
        lines = [Line("waiting", [m.waiting for m in moments]), Line("gpu", [m.gpu for m in moments])]
        parts.append(over_time(lines, _clock(moments[0].at), _clock(moments[-1].at)))
    return joined(parts)


def _clock(at: float) -> str:
    return time.strftime("%H:%M UTC", time.gmtime(at))
