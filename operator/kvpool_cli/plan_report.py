"""A plan for people, and for programs."""

import json
from collections.abc import Iterable
from typing import Any

from kvpool_cli import advice, break_even, verdicts
from kvpool_cli.plan import Planned
from kvpool_cli.tables import GB, table
from kvpool_lab.fleet import Fleet, Flows, Tally
from kvpool_lab.newcomers import POPULARITY, RECENCY
from kvpool_lab.planner import ENOUGH, Routed
from kvpool_lab.sample import Sum
from kvpool_operator.desired.quantity import format_quantity


def document(planned: Planned, pool_name: str, k8s_namespace: str) -> dict[str, Any]:
    """Rates are parts of the prompt tokens; bytes a second, seconds."""
    found, wanted = planned.curve, planned.wanted
    rows = []
    for capacity, blocks in planned.capacities:
        points = {each.policy: each for each in found.points if each.capacity == blocks}
        rows.append(
            {
                "capacity": capacity,
                "blocks": blocks,
                "bytes": blocks * planned.block_bytes,
                "tokenHitRate": {name: round(found.hit(each.missed), 4) for name, each in points.items()},
                "evictedBlocks": {name: each.evicted for name, each in points.items()},
            }
        )
    effective = planned.effective
    pool = advice.pool(planned, pool_name, k8s_namespace)
    return {
        "trace": str(wanted.trace),
        "requests": found.requests,
        "tokens": found.tokens,
        "seconds": planned.seconds,
        "blockRefs": planned.held.block_refs,
        "distinctBlocks": planned.sample.distinct,
        "followedPart": round(planned.sample.rate, 4),
        "blockBytes": planned.block_bytes,
        "idealTokenHitRate": round(found.ideal, 4),
        "capacities": rows,
        "policy": planned.policy,
        "effectiveCapacityBytes": None if effective is None else effective * planned.block_bytes,
        "replicas": wanted.replicas,
        "arenaBytes": planned.arena_blocks * planned.block_bytes,
        "routings": [_routing(planned, each) for each in planned.routed],
        "newcomers": _newcomers(planned),
        "breakEven": break_even.rows(wanted.prices) if wanted.prices else None,
        "paths": break_even.by_way(wanted.prices) if wanted.prices else [],
        "verdicts": [verdicts.as_row(each) for each in planned.verdicts],
        "pool": pool,
    }


def as_json(planned: Planned, pool_name: str, k8s_namespace: str) -> str:
    return json.dumps(document(planned, pool_name, k8s_namespace), indent=2) + "\n"


def _routing(planned: Planned, routed: Routed) -> dict[str, Any]:
    return {
        "routing": routed.routing,
        "busiest": round(routed.busiest, 3),
        "sharing": _fleet(planned, routed.sharing),
        "alone": _fleet(planned, routed.alone),
        "classes": {
            kind: {"sharing": _tally(tally), "alone": _tally(routed.alone.kinds[kind])}
            for kind, tally in routed.sharing.kinds.items()
        },
    }


def _fleet(planned: Planned, fleet: Fleet) -> dict[str, Any]:
    rates = {
        name: bytes_per_second(planned, fleet, flows, part)
        for name, flows, part in (
            ("read", fleet.read, fleet.total.far),
            ("write", fleet.written, fleet.total.missed),
        )
    }
    rates["total"] = tuple(sum(pair) for pair in zip(*rates.values(), strict=True))
    return {
        **_tally(fleet.total),
        **{f"{name}BytesPerSecond": {"mean": round(m), "worst": round(w)} for name, (m, w) in rates.items()},
    }


def bytes_per_second(planned: Planned, fleet: Fleet, flows: Flows, part: Sum) -> tuple[float, ...]:
    """Mean and the worst quarter of an hour, of all replicas together."""
    tokens, seconds, size = fleet.total.of(part), planned.seconds, planned.wanted.bytes_per_token
    return (tokens / seconds * size if seconds else 0.0), flows.worst(tokens, seconds) * size


def _tally(tally: Tally) -> dict[str, Any]:
    return {
        "requests": tally.requests,
        "tokens": tally.tokens,
        "nearHitRate": round(tally.rate(tally.near), 4),
        "farHitRate": round(tally.rate(tally.of(tally.far)), 4),
        "refusedRate": round(tally.rate(tally.of(tally.refused)), 4),
        "coldPrefillSeconds": round(tally.cold_seconds, 3),
        "prefillSeconds": round(tally.prefill_seconds, 3),
        "loadSeconds": round(tally.load_seconds, 3),
    }


def _newcomers(planned: Planned) -> dict[str, Any]:
    gains, hot = planned.gains, planned.hot_set
    wanted = planned.wanted
    size = None if hot is None else (hot.blocks or 0) * planned.block_bytes
    return {
        "cold": round(gains.hit(gains.cold), 4),
        "full": round(gains.hit(gains.full), 4),
        "hotSets": [
            {
                "bytes": each.blocks * planned.block_bytes,
                "ranking": each.ranking,
                "tokenHitRate": round(gains.hit(each), 4),
                "partOfGain": round(gains.part(each), 4),
            }
            for each in gains.warmed
            if each.blocks
        ],
        "hotSetBytes": size,
        "ranking": None if hot is None else hot.ranking,
        "scaleOutBytesPerSecond": None if size is None else wanted.newcomers * size / wanted.join_seconds,
    }


def as_text(planned: Planned, pool_name: str, k8s_namespace: str) -> str:
    found, held = planned.curve, planned.held
    lines = [
        f"{found.requests} requests, {found.tokens} prompt tokens in {held.block_refs} blocks, "
        f"{planned.sample.distinct} of them distinct; {planned.seconds:.0f} s",
        *(
            [f"followed: {100 * planned.sample.rate:.1f}% of the blocks, which stand for all"]
            if planned.sample.rate < 1
            else []
        ),
        f"token hit rate without any bound: {100 * found.ideal:.1f}%; by capacity and policy:",
        "",
        *_capacities(planned),
    ]
    if planned.routed:
        lines += ["", *_effective(planned), "", *_routings(planned), "", *_scale_out(planned)]
    if planned.wanted.prices is not None:
        lines += ["", *break_even.as_lines(planned.wanted.prices)]
    for verdict in planned.verdicts:
        lines += ["", verdicts.as_line(verdict)]
    pool = advice.pool(planned, pool_name, k8s_namespace)
    if pool is not None:
        lines += ["", "The pool to apply:", "", *advice.as_yaml(pool).splitlines()]
    elif not planned.verdicts:
        lines += ["", "For a verdict say what computing and loading cost: --prefill-rate or --engine, and --path."]
    return "\n".join([*lines, ""])


def _capacities(planned: Planned) -> list[str]:
    found, policies = planned.curve, planned.wanted.policies
    rows = []
    for capacity, blocks in planned.capacities:
        rates = [found.hit(each.missed) for each in found.points if each.capacity == blocks][: len(policies)]
        best = f"{100 * max(rates) / found.ideal:.0f}%" if found.ideal > 0 else "-"
        bytes_ = format_quantity(blocks * planned.block_bytes)
        rows.append((capacity, bytes_, str(blocks), *(f"{100 * rate:.1f}%" for rate in rates), best))
    return table(("CAPACITY", "BYTES", "BLOCKS", *policies, "OF IDEAL"), rows)


def _effective(planned: Planned) -> list[str]:
    arena = planned.arena_blocks * planned.block_bytes / GB
    if planned.effective is None:
        size = f"No capacity above has {100 * ENOUGH:.0f}% of the ideal hits"
    else:
        effective = planned.effective * planned.block_bytes / GB
        size = f"{effective:.1f} GB under {planned.policy} have {100 * ENOUGH:.0f}% of the ideal hits"
    return [f"{size}; below, {planned.wanted.replicas} replicas with arenas of {arena:.1f} GB each:"]


def _routings(planned: Planned) -> list[str]:
    rows = []
    for each in planned.routed:
        total, alone = each.sharing.total, each.alone.total
        read = bytes_per_second(planned, each.sharing, each.sharing.read, total.far)
        write = bytes_per_second(planned, each.sharing, each.sharing.written, total.missed)
        saved = (
            f"{100 * (alone.spent_seconds - total.spent_seconds) / alone.spent_seconds:.1f}%"
            if alone.spent_seconds
            else "-"
        )
        rows.append(
            (
                each.routing,
                f"{100 * alone.rate(alone.near):.1f}%",
                f"{100 * total.rate(total.near):.1f}%",
                f"{100 * total.rate(total.of(total.far)):.1f}%",
                *(f"{m / GB:.2f} / {w / GB:.2f}" for m, w in (read, write, _sum(read, write))),
                f"{each.busiest:.2f}",
                saved,
            )
        )
    titles = ("ROUTING", "ALONE", "NEAR", "FAR", "R_READ", "R_WRITE", "R_TOTAL", "BUSIEST", "SAVED")
    return [
        *table(titles, rows),
        "",
        "ALONE: hits without sharing. NEAR, FAR: with it, at the replica itself and at others. Rates in GB/s of all",
        "replicas, mean / worst 15 minutes; what is written goes into the replicas' own arenas. SAVED: of the time to",
        "first tokens, by sharing.",
    ]


def _sum(one: Iterable[float], other: Iterable[float]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _scale_out(planned: Planned) -> list[str]:
    gains, hot, wanted = planned.gains, planned.hot_set, planned.wanted
    rows = []
    sizes = sorted({each.blocks for each in gains.warmed if each.blocks})
    for size in sizes:
        by = {each.ranking: each for each in gains.warmed if each.blocks == size}
        rows.append(
            (
                f"{size * planned.block_bytes / GB:.2f} GB",
                *(f"{100 * gains.hit(by[r]):.1f}%" for r in (POPULARITY, RECENCY)),
            )
        )
    lines = table(("HOT SET", "BY POPULARITY", "BY RECENCY"), rows)
    cold, full = 100 * gains.hit(gains.cold), 100 * gains.hit(gains.full)
    lines += ["", f"A replica that joins hits {cold:.1f}% with nothing, {full:.1f}% with all that there is."]
    size = 0 if hot is None else (hot.blocks or 0) * planned.block_bytes
    if hot is None:
        lines[-1] += " No hot set that fits an arena has half of that gain: prewarming hardly pays."
    else:
        rate = wanted.newcomers * size / wanted.join_seconds
        lines[-1] += (
            f" {size / GB:.2f} GB, ranked by {hot.ranking}, have half of that gain: {wanted.newcomers} newcomers in "
            f"{wanted.join_seconds:g} s ask for {rate / GB:.3f} GB/s."
        )
    return lines
