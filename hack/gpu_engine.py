#!/usr/bin/env python3
"""The second part of gpu_check.py: real agents and two vLLM servers on the device, by the demo's and tests' harness.

    gpu_engine.py --engine-python PATH --model PATH [--engine-arguments "…"] [--dtype bfloat16]

Run by an interpreter with the agent's packages. Attach, reuse by exact token counts, fidelity against a local prefix
hit, a killed worker; each in a line, ending at the first that fails.
"""

import argparse
import os
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / part) for part in ("agent", "operator", "examples/demo", "tests/e2e")]

from engine.measured import BLOCK, Outcome, ask, by_source, prompt, settle  # noqa: E402
from replica import Pool, Replica, Tools, wait_for  # noqa: E402

LENGTHS = ((1, 1), (3, 17), (8, 31))  # whole blocks, and tokens after them


class CheckError(RuntimeError):
    """A check that failed, in one sentence."""


def say(text: str) -> None:
    print(f"  {text}", flush=True)


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise CheckError(f"{what}: found {found}, wanted {wanted}")


def attached(pool: Pool) -> tuple[Replica, Replica]:
    a, b = (pool.replica(name) for name in "AB")
    # one after the other: each looks at the device's free memory when it starts
    for replica in (a, b):
        replica.start_agent()
        replica.start_engine()
        replica.wait_engine()
        replica.wait_ready()
        status = replica.status()
        if not status["attached"]:
            raise CheckError(f"{replica.name} did not attach: {status['state']}, {status['reason']}")
    wait_for("A and B see each other", lambda: all(p["live"] for p in b.status()["peers"]) and b.status()["peers"], 30)
    fields = a.status()["format_fields"]
    say(f"attached: device {fields['device']}, {fields['engine']} {fields['engine_version']}, {fields['kv_dtype']}, "
        f"blocks of {fields['row_bytes']} bytes")  # fmt: skip
    return a, b


def reuse_and_fidelity(a: Replica, b: Replica) -> None:
    local: list[Outcome] = []
    for number, (blocks, tail) in enumerate(LENGTHS):
        tokens = prompt(1000 + number, blocks * BLOCK + tail)
        expect("computed by A", ask(a, tokens).tokens, by_source(computed=len(tokens)))
        local.append(ask(a, tokens))
        expect("found by A", local[-1].tokens, by_source(device=blocks * BLOCK, computed=tail))
        shared = ask(b, tokens)
        expect("loaded by B", shared.tokens, by_source(pool=blocks * BLOCK, computed=tail))
        worst = distance(shared, local[-1])
        say(
            f"{blocks} blocks loaded by B: token ids equal, log-probabilities of the top 20 differ by {worst:g} at most"
        )
        if worst:
            raise CheckError("an answer from the pool's blocks differs from one after a local prefix hit")
    if local[0].answer == local[1].answer:
        raise CheckError("two prompts have one answer: this comparison can't fail")


def distance(one: Outcome, other: Outcome) -> float:
    """The greatest difference of any top log-probability; raises where token ids or the sets of them differ."""
    expect("token ids", one.answer[0], other.answer[0])
    worst = 0.0
    for mine, theirs in zip(one.answer[1], other.answer[1], strict=True):
        expect("the top 20", sorted(mine), sorted(theirs))
        worst = max(worst, *(abs(mine[token] - theirs[token]) for token in mine))
    return worst


def killed_worker(a: Replica, b: Replica) -> None:
    tokens = prompt(2000, 5 * BLOCK + 3)
    ask(a, tokens)
    settle(a)
    before = a.status()["incarnation"]
    os.kill(a.worker_pid(), signal.SIGKILL)
    computed = ask(a, prompt(2001, 2 * BLOCK + 3))
    expect("computed by A, its worker just killed", computed.tokens, by_source(computed=2 * BLOCK + 3))
    wait_for("A's next worker", lambda: a.status()["incarnation"] != before and a.status()["attached"], 30)
    now = a.status()["incarnation"]
    wait_for("B sees it", lambda: any(p["live"] and p["incarnation"] == now for p in b.status()["peers"]), 30)
    expect("loaded by B", ask(b, tokens).tokens, by_source(pool=5 * BLOCK, computed=3))
    say("A's worker killed: A served on, its blocks were loaded by B from the next worker")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine-python", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--engine-arguments", default="")
    options = parser.parse_args()
    tools = Tools(options.engine_python, options.model)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kvpool-gpu-") as folder:
        arguments = tuple(shlex.split(options.engine_arguments))
        pool = Pool(tools, Path(folder), dtype=options.dtype, executor="uni", engine_arguments=arguments)
        try:
            a, b = attached(pool)
            reuse_and_fidelity(a, b)
            killed_worker(a, b)
        finally:
            pool.stop()
    say(f"engine part passed after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except (CheckError, RuntimeError) as error:
        raise SystemExit(f"gpu-check failed: {error}") from None
