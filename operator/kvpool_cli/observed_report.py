"""What the metrics of a running pool say about sharing, for people and for programs."""

import json
from dataclasses import dataclass
from typing import Any

from kvpool_cli import advice, break_even, verdicts
from kvpool_cli.break_even import Prices
from kvpool_cli.observed import Observed
from kvpool_cli.tables import GB, table
from kvpool_lab.planner import ENOUGH
from kvpool_lab.verdict import SHARE, Verdict, judge_measured


@dataclass(frozen=True)
class Judged:
    """`effective`: bytes of an arena that has nine tenths of the hits of the largest that was looked at, None where no
    use was seen; `prices`: None where no request, or no load, was measured yet."""

    observed: Observed
    verdict: Verdict
    effective: int | None
    prices: Prices | None
    newcomers: int
    join_seconds: float
    pool: dict[str, Any] | None


def judge(
    observed: Observed, name: str, k8s_namespace: str, bytes_per_token: int, newcomers: int, join_seconds: float
) -> Judged:
    left = observed.left
    verdict = judge_measured(
        observed.part(observed.local),
        observed.part(observed.shared),
        observed.part(sum(left.values())),
        observed.waiting,
        observed.saved,
        max(left, key=lambda reason: left[reason], default=""),
    )
    effective = _effective(observed)
    memory = {"size": advice.quantity(effective)} if effective else {}
    pool = advice.document(name, k8s_namespace, memory, observed.hot_bytes or None, join_seconds)
    ways = [observed.way] if observed.way else []
    prices = Prices(observed.curve, ways, bytes_per_token) if observed.curve and ways else None
    return Judged(
        observed, verdict, effective, prices, newcomers, join_seconds, pool if verdict.word == SHARE else None
    )


def _effective(observed: Observed) -> int | None:
    most = max((blocks for _, blocks in observed.within), default=0.0)
    return next((size for size, blocks in observed.within if most and blocks >= ENOUGH * most), None)


def as_json(judged: Judged, window: str) -> str:
    seen = judged.observed
    told = {
        "window": window,
        "members": seen.members,
        "promptBlocks": round(seen.blocks),
        "nearHitRate": round(seen.part(seen.local), 4),
        "farHitRate": round(seen.part(seen.shared), 4),
        "missedBlocks": {reason: round(blocks) for reason, blocks in sorted(seen.missed.items())},
        **{f"{word}BytesPerSecond": {"mean": round(m), "worst": round(w)} for word, (m, w) in _rates(seen).items()},
        "capacities": [
            {"bytes": size, "blockHitRate": round(blocks / seen.asked, 4)} for size, blocks in seen.within if seen.asked
        ],
        "effectiveCapacityBytes": judged.effective,
        "newcomers": {"hotSetBytes": seen.hot_bytes, "scaleOutBytesPerSecond": _scale_out(judged)},
        "breakEven": break_even.rows(judged.prices) if judged.prices else None,
        "paths": break_even.by_way(judged.prices) if judged.prices else [],
        "verdicts": [verdicts.as_row(judged.verdict)],
        "pool": judged.pool,
    }
    return json.dumps(told, indent=2) + "\n"


def as_text(judged: Judged, window: str) -> str:
    seen = judged.observed
    near, far = (100 * seen.part(blocks) for blocks in (seen.local, seen.shared))
    lines = [
        f"{seen.members} agents, {seen.blocks:.0f} prompt blocks within {window}: {near:.1f}% found at the replica, "
        f"{far:.1f}% loaded from others",
        "",
        *table(
            ("RATE", "MEAN", "WORST 15 MIN"),
            [(f"R_{word.upper()}", *(f"{rate / GB:.3f} GB/s" for rate in pair)) for word, pair in _rates(seen).items()],
        ),
    ]
    if missed := sorted(seen.missed.items(), key=lambda entry: -entry[1]):
        lines += ["", *table(("MISSED FOR", "BLOCKS"), [(reason, f"{blocks:.0f}") for reason, blocks in missed])]
    if seen.asked:
        rows = [(f"{size / GB:.3f} GB", f"{100 * blocks / seen.asked:.1f}%") for size, blocks in seen.within if blocks]
        lines += ["", *table(("ARENA OF EACH REPLICA", "HITS"), rows)]
    if seen.hot_bytes:
        lines += [
            "",
            f"The largest warm-up took {seen.hot_bytes / GB:.3f} GB: {judged.newcomers} newcomers in "
            f"{judged.join_seconds:g} s ask for {_scale_out(judged) / GB:.3f} GB/s.",
        ]
    if judged.prices:
        lines += ["", *break_even.as_lines(judged.prices)]
    lines += ["", verdicts.as_line(judged.verdict)]
    if judged.pool is not None:
        lines += ["", "The pool to apply:", "", *advice.as_yaml(judged.pool).splitlines()]
    return "\n".join([*lines, ""])


def _rates(seen: Observed) -> dict[str, tuple[float, float]]:
    """The worst quarters of an hour need not be the same, so that of the total is an upper bound."""
    mean, worst = (a + b for a, b in zip(seen.read, seen.written, strict=True))
    return {"read": seen.read, "write": seen.written, "total": (mean, worst)}


def _scale_out(judged: Judged) -> float:
    return judged.newcomers * judged.observed.hot_bytes / judged.join_seconds
