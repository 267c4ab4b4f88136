"""By prefix length what computing takes and what loading takes, and from which length, or bandwidth, on loading is
sooner."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvpool_cli.engine_costs import Point
from kvpool_cli.tables import GB, table
from kvpool_lab.costs import Path, PrefillCurve, break_even_bandwidth, break_even_tokens

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


@dataclass(frozen=True)
class Prices:
    """`ways`: between replicas, the one in use first; none where it is not known. `measured`: at an engine, empty where
    what computing takes was given."""

    curve: PrefillCurve
    ways: Sequence[Path]
    bytes_per_token: int
    measured: Sequence[Point] = ()


def rows(prices: Prices) -> list[dict[str, Any]]:
    """Up to where the costs are known; loading is by the way in use, the bandwidth for its latency."""
    known = max(tokens for tokens, _ in prices.curve.points)
    hits = {point.tokens: point.hit_seconds for point in prices.measured}
    way = prices.ways[0] if prices.ways else None
    found: list[dict[str, Any]] = []
    for tokens in hits or LENGTHS:
        if tokens > known:
            continue
        size = tokens * prices.bytes_per_token
        needed = break_even_bandwidth(prices.curve, way.latency if way else 0.0, prices.bytes_per_token, tokens)
        found.append(
            {
                "prefix_tokens": tokens,
                "kv_bytes": size,
                "cold_prefill_ms": round(1000 * prices.curve.seconds(tokens), 2),
                **({"local_hit_ttft_ms": round(1000 * hits[tokens], 2)} if hits else {}),
                **({"load_ms": round(1000 * way.seconds(size), 2)} if way else {}),
                "break_even_bytes_per_second": None if needed is None else round(needed),
            }
        )
    return found


def by_way(prices: Prices) -> list[dict[str, Any]]:
    """For each way the shortest prefix that is loaded sooner than it is computed, None where none is."""
    return [
        {
            "path": way.name,
            "bytes_per_second": way.bytes_per_second,
            "latency_seconds": way.latency,
            "break_even_tokens": break_even_tokens(prices.curve, way, prices.bytes_per_token),
        }
        for way in prices.ways
    ]


def as_json(prices: Prices) -> str:
    return json.dumps({"breakEven": rows(prices), "paths": by_way(prices)}, indent=2) + "\n"


def as_text(prices: Prices) -> str:
    return "\n".join([*as_lines(prices), ""])


def as_lines(prices: Prices) -> list[str]:
    titles = {
        "prefix_tokens": "PREFIX", "kv_bytes": "KV", "cold_prefill_ms": "PREFILL MS",
        "local_hit_ttft_ms": "LOCAL HIT MS", "load_ms": "LOAD MS", "break_even_bytes_per_second": "BREAK-EVEN",
    }  # fmt: skip
    found = rows(prices)
    shown = [field for field in titles if any(field in row for row in found)]
    lines = table([titles[field] for field in shown], [[_cell(field, row[field]) for field in shown] for row in found])
    if prices.ways:
        lines.append("")
    for way in by_way(prices):
        shortest = way["break_even_tokens"]
        said = f"from {shortest} tokens on" if shortest else "at no length"
        rate = way["bytes_per_second"] / GB
        lines.append(f"Over {way['path']} ({rate:.2f} GB/s) loading is sooner than computing {said}.")
    return lines


def _cell(field: str, value: float | None) -> str:
    if value is None:
        return "-"
    if field == "prefix_tokens":
        return str(value)
    if field == "kv_bytes":
        return f"{value / GB:.3f} GB"
    return f"{value / GB:.2f} GB/s" if field == "break_even_bytes_per_second" else f"{value:.1f}"
