"""The main job on one machine: three replicas of a real model share prefix KV-cache, the third joins warm.

    make demo

Real vLLM servers on the CPU, each with an agent beside it, no Kubernetes and no root. Two replicas come up; each
computes some branches' handbooks and loads what the other computed; then a third comes up and warms before it is
ready. It tells what happens as it happens, ends by itself and leaves no process.
"""

import json
import signal
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from replica import Pool, Replica, Tools, WaitError, wait_for
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
MIB = 2**20
PROGRESS_SECONDS = 5.0


@dataclass
class Measured:
    """What one replica showed: seconds to the first token of prompts nobody knew, and of prompts the pool held."""

    cold: list[float] = field(default_factory=list)
    pooled: list[float] = field(default_factory=list)
    ready_seconds: float = 0.0


class Progress:
    """A line every five seconds while something takes long."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        started = time.monotonic()
        while not self._done.wait(PROGRESS_SECONDS):
            print(f"   … {self._what}: {time.monotonic() - started:.0f} s", flush=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def say(text: str) -> None:
    print(text, flush=True)


def handbook(branch: str, question: str) -> str:
    """A prompt whose first words are the branch's, so that two branches share no prefix."""
    return f"{branch} branch of the town library.\n\n{(HERE / 'handbook.md').read_text()}\n{question}\n"


def first_token(replica: Replica, prompt: str) -> float:
    """Seconds from the request to the first token of the streamed answer."""
    body = {"model": "smol", "prompt": prompt, "max_tokens": 8, "temperature": 0, "stream": True}
    request = urllib.request.Request(
        f"{replica.engine_url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    started, seconds = time.monotonic(), 0.0
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            if not seconds and line.startswith(b"data: {"):
                seconds = time.monotonic() - started
    return seconds


def start(pool: Pool, name: str) -> tuple[Replica, float]:
    """A replica, and the seconds from its start until engine and agent were ready."""
    say(f"\n== replica {name}: its agent and a vLLM server start")
    replica = pool.replica(name)
    began = time.monotonic()
    with Progress(f"vLLM of replica {name} loads"):
        replica.start_agent()
        replica.start_engine()
        replica.wait_engine()
        replica.wait_ready()
    seconds = time.monotonic() - began
    status = replica.status()
    state = f"{status['state']}, {status['reason']}" if status["reason"] else status["state"]
    say(f"   ready after {seconds:.1f} s: {state}")
    return replica, seconds


def ask(replica: Replica, branches: Sequence[str], question: str, seconds: list[float], verb: str) -> None:
    """Asks about each branch and tells where the prompt's tokens came from, by the engine's own counters."""
    for branch in branches:
        before = replica.prompt_tokens()
        taken = first_token(replica, handbook(branch, question))
        after = wait_for("the engine's counters", lambda b=before: changed(replica, b), 10)
        seconds.append(taken)
        computed, pooled = (after[k] - before[k] for k in ("computed", "pool"))
        local = sum(after[k] - before[k] for k in ("device", "host"))
        say(
            f"   {replica.name} {verb:8} {branch + ':':12} {computed:5d} tokens computed, {local:4d} found locally, "
            f"{pooled:5d} loaded from the pool, first token after {taken:.2f} s"
        )


def changed(replica: Replica, before: dict[str, int]) -> dict[str, int] | None:
    now = replica.prompt_tokens()
    return now if sum(now.values()) > sum(before.values()) else None


def show(pool: Pool, measured: dict[str, Measured]) -> None:
    """The table, and one honest line."""
    table = Table(title="Three replicas, one pool")
    for column in ("replica", "prompt tokens", "computed", "local", "shared", "TTFT p50 without", "TTFT p50 with"):
        table.add_column(column, justify="left" if column == "replica" else "right")
    table.add_column("loaded from peers", justify="right")
    for replica in pool.replicas:
        tokens, numbers, status = replica.prompt_tokens(), measured[replica.name], replica.status()
        block = pool.block_tokens
        shared = status["hits"]["shared_blocks"] * block
        local = tokens["device"] + tokens["host"] + tokens["pool"] - shared
        moved = sum(t["bytes"] for what, t in status["transfers"].items() if what in ("demand_in", "prewarm_in"))
        table.add_row(
            replica.name, str(sum(tokens.values())), str(tokens["computed"]), str(local), str(shared),
            f"{statistics.median(numbers.cold):.2f} s", f"{statistics.median(numbers.pooled):.2f} s",
            f"{moved / MIB:.0f} MiB",
        )  # fmt: skip
    Console(width=118).print(table)
    third = pool.replicas[-1].status()
    warm = third["warm"]
    say(
        f"Replica C was ready {measured['C'].ready_seconds:.1f} s after its start with {warm['loaded_blocks']} of "
        f"{warm['planned_blocks']} hot blocks ({warm['bytes'] / MIB:.0f} MiB in {warm['seconds']:.1f} s); "
        f"kvpool added {warm['added_seconds']:.1f} s."
    )
    words = ("tls_dialed", "tls_resumed", "connections_in_clear")
    dialed, resumed, clear = (sum(r.status()["counters"].get(word, 0) for r in pool.replicas) for word in words)
    say(f"Agents talked inside TLS 1.3: {dialed} connections, {resumed} of them resumed; {clear} in clear.")
    cold = statistics.median([s for m in measured.values() for s in m.cold])
    pooled = statistics.median([s for m in measured.values() for s in m.pooled])
    if pooled < cold:
        say(f"Sharing paid here: the first token came after {pooled:.2f} s instead of {cold:.2f} s (p50, this CPU).")
    else:
        say(f"Sharing did not pay here: first token after {pooled:.2f} s with the pool, {cold:.2f} s without (p50).")


def run(folder: Path) -> None:
    prompts = json.loads((HERE / "prompts.json").read_text())
    questions, branches, strangers = prompts["questions"], prompts["branches"], iter(prompts["strangers"])
    pool = Pool(Tools.prepared(), folder, agent={"arenaBytes": 1024 * MIB}, loading="Measured")
    measured = {name: Measured() for name in "ABC"}
    half = len(branches) // 2
    try:
        a, measured["A"].ready_seconds = start(pool, "A")
        b, measured["B"].ready_seconds = start(pool, "B")
        say(f"\n== A is asked about {half} branches that nobody knows, then B about the same ones")
        ask(a, branches[:half], questions[0], measured["A"].cold, "computes")
        ask(b, branches[:half], questions[1], measured["B"].pooled, "loads")
        ask(a, branches[:1], questions[2], [], "repeats")
        say(f"\n== the other way round: B is asked about {half} new branches, then A about the same ones")
        ask(b, branches[half:], questions[0], measured["B"].cold, "computes")
        ask(a, branches[half:], questions[1], measured["A"].pooled, "loads")
        c, measured["C"].ready_seconds = start(pool, "C")
        warm = c.status()["warm"]
        say(f"   C holds {warm['loaded_blocks']} of {warm['planned_blocks']} hot blocks before its first request")
        say("\n== C's first requests, and some about branches that nobody knows")
        ask(c, branches, questions[2], measured["C"].pooled, "loads")
        ask(c, [next(strangers) for _ in range(half)], questions[0], measured["C"].cold, "computes")
        say("")
        show(pool, measured)
    except WaitError as error:
        raise SystemExit(f"demo: {error}") from None
    finally:
        with Progress("the replicas end"):
            pool.stop()


def main() -> None:
    # so that a termination unwinds, too, and ends the replicas
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="kvpool-demo-") as folder:
        run(Path(folder))


if __name__ == "__main__":
    main()
