"""What to do about a class of traffic: share, route instead, or leave it as it is, and why.

Compared is the time that all first tokens wait for computing and loading, under the routing in use: as it is, with
sharing, and under another routing without sharing. Routing moves no bytes, so it goes before sharing where it saves
nearly as much and leaves no replica overloaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvpool_lab.costs import Costs
from kvpool_lab.fleet import Tally
from kvpool_lab.planner import Routed

SHARE, ROUTE, LOCAL = "share", "route instead", "local is enough"
NOTABLE = 0.02  # of the time
NEARLY = 0.9  # of what sharing saves
OVERLOADED = 1.5


@dataclass(frozen=True)
class Verdict:
    """`kind`: the class, empty where the trace names none; `saved`: part of the waiting time that the word saves."""

    kind: str
    word: str
    reason: str
    saved: float


def judge(kind: str, routed: Sequence[Routed], costs: Costs, seconds: float) -> Verdict:
    """routed: the routing in use first; seconds: of the trace, 0 where it has no times."""
    used, others = routed[0], [each for each in routed[1:] if each.busiest <= OVERLOADED]
    base, shared = used.alone.kinds[kind], used.sharing.kinds[kind]
    by_sharing = _saved(base, shared)
    best = max(others, key=lambda each: _saved(base, each.alone.kinds[kind]), default=None)
    by_routing = _saved(base, best.alone.kinds[kind]) if best else 0.0
    narrow = _narrow(used, costs, seconds)
    if narrow:
        by_sharing = 0.0
    if best and by_routing >= NOTABLE and by_routing >= NEARLY * by_sharing:
        why = narrow or (
            f"sharing under {used.routing} saves {_percent(by_sharing)}" if by_sharing >= NOTABLE else _no_gain(shared)
        )
        return Verdict(
            kind,
            ROUTE,
            f"{best.routing} routing saves {_percent(by_routing)} of the time to first tokens without moving a byte; "
            f"{why}",
            by_routing,
        )
    if by_sharing >= NOTABLE:
        far = shared.rate(shared.of(shared.far))
        beside = f"; {best.routing} routing alone saves {_percent(by_routing)}" if best else ""
        return Verdict(
            kind,
            SHARE,
            f"{_percent(far)} of the prompt tokens lie at other replicas and come sooner than they are computed, which "
            f"saves {_percent(by_sharing)} of the time to first tokens under {used.routing}{beside}",
            by_sharing,
        )
    return Verdict(kind, LOCAL, narrow or _no_gain(shared), 0.0)


def judge_measured(near: float, far: float, left: float, waiting: float, saved: float, why: str) -> Verdict:
    """Of a pool that runs. near, far: parts of its prompt blocks that were found at the replica and loaded from
    others; left: that others held and that were computed all the same, mostly for the reason `why`. waiting: seconds
    until first tokens that sharing has spared lately, of `saved` that computing what was loaded would have taken."""
    part = waiting / saved if saved > 0 else 0.0
    if far + left < NOTABLE:
        return Verdict(
            "",
            LOCAL,
            f"replicas have {_percent(near)} of the prompt blocks themselves, and others add {_percent(far)}",
            0.0,
        )
    if far >= NOTABLE and waiting > 0:
        return Verdict(
            "",
            SHARE,
            f"{_percent(far)} of the prompt blocks were loaded from other replicas, which has spared requests "
            f"{waiting:.1f} s of the {saved:.1f} s that computing these would have taken lately",
            part,
        )
    lost = f"loading has cost requests {-waiting:.1f} s more than it spared lately" if far >= NOTABLE else ""
    skipped = f"{_percent(left)} of the prompt blocks lie there and were computed ({why})" if left else ""
    return Verdict(
        "",
        ROUTE,
        f"others hold {_percent(far + left)} of the prompt blocks, and {'; '.join(filter(None, (lost, skipped)))}. "
        "Requests that are routed by prefix find them where they lie, without moving a byte; a trace says whether that "
        "leaves a replica overloaded",
        0.0,
    )


def _saved(base: Tally, other: Tally) -> float:
    return (base.spent_seconds - other.spent_seconds) / base.spent_seconds if base.spent_seconds else 0.0


def _narrow(used: Routed, costs: Costs, seconds: float) -> str:
    """Why the way between replicas can't carry what would be loaded; empty where it can."""
    total = used.sharing.total
    worst = used.sharing.read.worst(total.of(total.far), seconds) * costs.bytes_per_token / len(used.sharing.given)
    if worst <= costs.path.bytes_per_second:
        return ""
    return (
        f"sharing would read {worst / 1e9:.2f} GB/s per replica in the worst quarter of an hour, more than the path "
        f"{costs.path.name} carries"
    )


def _no_gain(shared: Tally) -> str:
    refused = shared.rate(shared.of(shared.refused))
    if refused >= NOTABLE:
        return (
            f"{_percent(refused)} of the prompt tokens lie at other replicas, and computing them is sooner than loading"
        )
    near, far = shared.rate(shared.near), shared.rate(shared.of(shared.far))
    if near + far < NOTABLE:
        return "hardly any prefix comes twice, or the trace does not say which do"
    return f"replicas have {_percent(near)} of the prompt tokens themselves, and others would add {_percent(far)}"


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"
