"""Real vLLM servers on the CPU: their cores and those of what asks them, and when each token of an answer came."""

import contextlib
import json
import os
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from replica import Replica

REQUEST_SECONDS = 300.0


@dataclass(frozen=True)
class Answer:
    """`stamps`: seconds from the request to each of its tokens; `cached`: tokens of the prompt that were not computed,
    0 where the server was started without `--enable-prompt-tokens-details`."""

    stamps: Sequence[float]
    cached: int


def core_sets(program: str) -> tuple[set[int], set[int]]:
    """Cores for the engines, and for agents and load generator, which this process is on from now on. Ends the program
    where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit(f"{program} needs two cores: one for the engines, one for the agents and the load generator.")
    engine_cores, other_cores = set(cores[:-1]), {cores[-1]}
    os.sched_setaffinity(0, other_cores)
    return engine_cores, other_cores


@contextlib.contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """What is started meanwhile runs on these cores only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def stream(replica: Replica, prompt: Sequence[int], tokens: int) -> Answer:
    """A request at temperature 0 that is answered with so many tokens."""
    body = {
        "model": "smol", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    request = urllib.request.Request(
        f"{replica.engine_url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    started, lines = time.monotonic(), []
    with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                lines.append((time.monotonic() - started, line))
    told = [(seconds, json.loads(line.removeprefix(b"data: "))) for seconds, line in lines]
    usage = next(part["usage"] for _, part in told if part.get("usage"))
    details = usage.get("prompt_tokens_details") or {}
    return Answer([seconds for seconds, part in told if part["choices"]], details.get("cached_tokens") or 0)
