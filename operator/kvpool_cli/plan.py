"""`kvpool plan`: what share of a recorded trace's prompt tokens an arena of some size would have held, by policy.

The trace goes through the policies' own code (kvpool_lab.replay), once for all sizes and policies.
"""

import io
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kvpool_lab.replay import S3FIFO_BLOCKWISE, Replayed, distinct_blocks, replay
from kvpool_lab.traces import TraceError, read
from kvpool_operator.desired.quantity import QuantityError, format_quantity, parse_quantity

POLICIES = ("GDSF", "LRU", "S3FIFO")  # that a pool can have
CHOICES = (*POLICIES, S3FIFO_BLOCKWISE)
TOLD_EVERY_SECONDS = 5.0
WIDTH = 120


class PlanError(ValueError):
    """The plan can't be made; the message names the option and the fix."""


@dataclass(frozen=True)
class Wanted:
    """`capacities`: quantities of bytes (8Gi), or percent of the trace's distinct blocks (5%)."""

    trace: Path
    policies: Sequence[str]
    capacities: Sequence[str]
    bytes_per_token: int
    block_tokens: int
    warm_up_percent: int


@dataclass(frozen=True)
class Planned:
    """The capacities as they were written, each with its blocks; and what the replay found."""

    wanted: Wanted
    block_bytes: int
    capacities: Sequence[tuple[str, int]]
    found: Replayed


class _Told:
    """Says on stderr how far a long reading is."""

    def __init__(self, what: str) -> None:
        self._what, self._last = what, time.monotonic()

    def __call__(self, part: float) -> None:
        if time.monotonic() - self._last >= TOLD_EVERY_SECONDS:
            self._last = time.monotonic()
            print(f"kvpool plan: {self._what}, {100 * part:.0f} % of the trace", file=sys.stderr, flush=True)


def plan(wanted: Wanted) -> Planned:
    """Raises PlanError."""
    try:
        first = next(iter(read(wanted.trace, wanted.block_tokens)))
        block_bytes = first.block_tokens * wanted.bytes_per_token
        distinct = requests = 0
        if wanted.warm_up_percent or any(each.endswith("%") for each in wanted.capacities):
            distinct, requests = _counted(wanted)
        capacities = [(each, _blocks(each, distinct, block_bytes)) for each in wanted.capacities]
        pairs = [(policy, blocks) for _, blocks in capacities for policy in wanted.policies]
        trace = read(wanted.trace, wanted.block_tokens, _Told("replayed"))
        found = replay(trace, pairs, requests * wanted.warm_up_percent // 100)
    except TraceError as error:
        raise PlanError(str(error)) from None
    return Planned(wanted, block_bytes, capacities, found)


def _counted(wanted: Wanted) -> tuple[int, int]:
    """Distinct blocks and requests of the trace."""
    count = 0

    def counted(requests: int) -> None:
        nonlocal count
        count = requests

    return distinct_blocks(read(wanted.trace, wanted.block_tokens, _Told("counted")), counted), count


def _blocks(capacity: str, distinct: int, block_bytes: int) -> int:
    try:
        if capacity.endswith("%"):
            blocks = round(distinct * Fraction(capacity[:-1]) / 100)
        else:
            blocks = parse_quantity(capacity) // block_bytes
    except (ValueError, ZeroDivisionError) as error:
        fix = error if isinstance(error, QuantityError) else "write percent of the distinct blocks, such as 5%"
        raise PlanError(f"--capacity {capacity}: {fix}") from None
    if blocks < 1:
        raise PlanError(f"--capacity {capacity}: it has no room for one block of {block_bytes} bytes; raise it")
    return blocks


def as_json(planned: Planned) -> str:
    found, rows = planned.found, []
    for capacity, blocks in planned.capacities:
        hits = {each.policy: each for each in found.outcomes if each.capacity == blocks}
        rows.append(
            {
                "capacity": capacity,
                "blocks": blocks,
                "bytes": blocks * planned.block_bytes,
                "tokenHitRate": {name: _rate(each.hit_tokens, found) for name, each in hits.items()},
                "evictedBlocks": {name: each.evicted for name, each in hits.items()},
            }
        )
    document: dict[str, Any] = {
        "trace": str(planned.wanted.trace),
        "requests": found.requests,
        "tokens": found.tokens,
        "blockRefs": found.block_refs,
        "distinctBlocks": found.blocks,
        "blockBytes": planned.block_bytes,
        "idealTokenHitRate": _rate(found.ideal_tokens, found),
        "capacities": rows,
    }
    return json.dumps(document, indent=2) + "\n"


def as_text(planned: Planned) -> str:
    found = planned.found
    table = Table(box=None, pad_edge=False, header_style="")
    for title in ("CAPACITY", "BYTES", "BLOCKS", *planned.wanted.policies, "OF IDEAL"):
        table.add_column(title, no_wrap=True, justify="left" if title == "CAPACITY" else "right")
    for capacity, blocks in planned.capacities:
        rates = [_rate(each.hit_tokens, found) for each in found.outcomes if each.capacity == blocks]
        ideal = _rate(found.ideal_tokens, found)
        best = f"{100 * max(rates) / ideal:.0f}%" if ideal else "-"
        bytes_ = format_quantity(blocks * planned.block_bytes)
        table.add_row(capacity, bytes_, str(blocks), *(f"{100 * rate:.1f}%" for rate in rates), best)
    text = io.StringIO()
    Console(file=text, width=WIDTH, color_system=None).print(table)
    return "\n".join(
        [
            f"{found.requests} requests, {found.tokens} prompt tokens in {found.block_refs} blocks, {found.blocks} of "
            f"them distinct",
            f"token hit rate without any bound: {100 * _rate(found.ideal_tokens, found):.1f}%; by capacity and policy:",
            "",
            *(line.rstrip() for line in text.getvalue().splitlines()),
            "",
        ]
    )


def _rate(tokens: int, found: Replayed) -> float:
    return round(tokens / found.tokens, 4) if found.tokens else 0.0
