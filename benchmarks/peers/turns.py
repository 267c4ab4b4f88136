"""The side of a peer's program that transfer.py talks to: one line asks for a turn, one line answers.

A turn gets all blocks once. Its answer is a JSON object with the seconds it took and the CPU seconds that both ends
used. The program ends when its input does.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def block(number: int, size: int) -> bytes:
    """A block's bytes: its number in the first eight, so that one that came can be told from any other."""
    return number.to_bytes(8, "little") + bytes([number % 251]) * (size - 8)


def check(number: int, view: memoryview) -> None:
    """Raises when a buffer does not begin and end as the block does."""
    size = len(view)
    if bytes(view[:8]) != number.to_bytes(8, "little") or view[size - 1] != number % 251:
        raise SystemExit(f"block {number} did not come")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_seconds(pid: int) -> float:
    """Of all threads of a process."""
    return sum(int((t / "schedstat").read_text().split()[0]) for t in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def answer(turns: dict[str, Callable[[], None]], servers: Sequence[int]) -> None:
    """Tells the names of the ways, then takes turns until the input ends."""
    pids = [os.getpid(), *servers]
    print(json.dumps(list(turns)), flush=True)
    for line in sys.stdin:
        used, started = sum(map(cpu_seconds, pids)), time.monotonic()
        turns[line.strip()]()
        seconds = time.monotonic() - started
        print(json.dumps({"seconds": seconds, "cpu": sum(map(cpu_seconds, pids)) - used}), flush=True)
