"""What joining costs an engine that gains nothing from it: unique prompts only, bare against joined, interleaved.

    python benchmarks/tax.py [--rounds 20] [--prompt-tokens 640] [--answer-tokens 24]

Two real vLLM servers on the CPU, one bare and one with its agent. Every round asks each of them prompts that share no
prefix with any other, in an order drawn anew; the bare one is asked twice, and the second series against the first is
A/A, the noise of this run. Only one request runs at a time. Figures: medians and p99 of time to first token (TTFT) and
time between tokens (ITL), the median of the rounds' ratios, CPU seconds and memory of engine and agent.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "examples" / "demo"))

from replica import Pool, Replica, Tools  # noqa: E402


@dataclass
class Series:
    """Seconds of one series, round by round."""

    ttft: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)


def unique_prompt(number: int, length: int) -> list[int]:
    return [(number * 7919 + i * 104_729 + number * i) % 40_000 + 100 for i in range(length)]


def ask(replica: Replica, prompt: list[int], tokens: int, series: Series) -> None:
    body = {
        "model": "smol", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
    }  # fmt: skip
    request = urllib.request.Request(
        f"{replica.engine_url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    started, stamps = time.monotonic(), []
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                stamps.append(time.monotonic())
    series.ttft.append(stamps[0] - started)
    series.between.append((stamps[-1] - stamps[0]) / (len(stamps) - 1))
    series.total.append(stamps[-1] - started)


def family(pid: int) -> list[int]:
    """A process and all that it has started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        found.append(queue.pop())
        queue += children.get(found[-1], [])
    return found


def usage(pid: int) -> tuple[float, float]:
    """(CPU seconds, resident MiB) of a process and all that it has started."""
    ticks, pages = 0, 0
    for member in family(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
        pages += int(fields[21])
    return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


def ratio(a: list[float], b: list[float]) -> str:
    ratios = sorted(x / y for x, y in zip(a, b, strict=True))
    low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
    return f"{statistics.median(ratios):.3f} (quartiles {low:.3f} to {high:.3f})"


def run(pool: Pool, rounds: int, prompt_tokens: int, answer_tokens: int) -> None:
    bare, joined = pool.replica("bare"), pool.replica("joined")
    bare.start_engine(joined=False)
    bare.wait_engine()
    joined.start_agent()
    joined.start_engine()
    joined.wait_engine()
    joined.wait_ready()
    ways = {"bare": bare, "bare again": bare, "joined": joined}
    series = {name: Series() for name in ways}
    names = list(ways)
    number = 0
    before: dict[str, tuple[float, float]] = {}
    chance = random.Random(1)
    for turn in range(-1, rounds):
        # any order: what one way leaves behind must not always meet the same next one
        for name in chance.sample(names, len(names)):
            number += 1
            # the first round warms up
            ask(
                ways[name], unique_prompt(number, prompt_tokens), answer_tokens, series[name] if turn >= 0 else Series()
            )
        if turn < 0:
            before = {r.name: usage(r.engine_process.pid) for r in (bare, joined) if r.engine_process}
            before["agent"] = usage(joined.agent_process.pid) if joined.agent_process else (0.0, 0.0)
    print(f"{rounds} rounds, {prompt_tokens} prompt and {answer_tokens} answer tokens, one request at a time")
    for name, one in series.items():
        print(
            f"  {name:11} TTFT p50 {statistics.median(one.ttft):.3f} s, p99 {p99(one.ttft):.3f} s; "
            f"ITL p50 {1e3 * statistics.median(one.between):.1f} ms, p99 {1e3 * p99(one.between):.1f} ms"
        )
    for name, label in (("joined", "bare / joined"), ("bare again", "A/A, noise")):
        print(f"  {label:13} throughput {ratio(series['bare'].total, series[name].total)}")
    requests = {"bare": 2 * rounds, "joined": rounds, "agent": rounds}
    for name, pid in (
        ("bare", bare.engine_process),
        ("joined", joined.engine_process),
        ("agent", joined.agent_process),
    ):
        assert pid is not None
        seconds, resident = usage(pid.pid)
        each = (seconds - before[name][0]) / requests[name]
        print(f"  {name:11} {each:.3f} CPU-s a request, {resident:.0f} MiB resident")
    print(f"  pool hits: {joined.prompt_tokens()['pool']} tokens (must be 0)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--prompt-tokens", type=int, default=640)
    parser.add_argument("--answer-tokens", type=int, default=24)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvpool-tax-") as folder:
        pool = Pool(Tools.prepared(), Path(folder))
        try:
            run(pool, options.rounds, options.prompt_tokens, options.answer_tokens)
        finally:
            pool.stop()


if __name__ == "__main__":
    main()
