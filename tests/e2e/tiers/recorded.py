"""The recorded traces, and what other programs found on them (shared/facts/traces.md §1.1)."""

import os
from functools import cache
from pathlib import Path

import pytest

from kvpool_lab.recorded import Request
from kvpool_lab.traces import read

REPOSITORY = Path(__file__).resolve().parents[3]
TRACES = Path(os.environ.get("KVPOOL_TRACES") or REPOSITORY.parent / "shared" / "traces")
FILES = {
    "conversation": "mooncake/conversation_trace.jsonl",
    "synthetic": "mooncake/synthetic_trace.jsonl",
    "claude-code": "claude_code_weka/cc_merged300_b512.jsonl.gz",
}
# trace, percent of its distinct blocks: token hit rates of LRU, GDSF capped at 4 with leaves only, S3-FIFO block by
# block, and Belady
KNOWN = {
    ("conversation", 1): (0.053, 0.055, 0.078, 0.251),
    ("conversation", 5): (0.200, 0.209, 0.194, 0.374),
    ("conversation", 10): (0.284, 0.294, 0.248, 0.374),
    ("conversation", 20): (0.352, 0.347, 0.313, 0.374),
    ("synthetic", 5): (0.160, 0.159, 0.163, 0.403),
    ("synthetic", 20): (0.400, 0.407, 0.407, 0.619),
    ("claude-code", 1): (0.128, 0.151, 0.295, 0.507),
    ("claude-code", 2): (0.451, 0.482, 0.506, 0.736),
    ("claude-code", 5): (0.868, 0.866, 0.846, 0.930),
    ("claude-code", 10): (0.951, 0.949, 0.945, 0.965),
}
POLICIES = ("LRU", "GDSF", "S3FIFO-blockwise", "S3FIFO")
WITHIN = {"LRU": 0.005, "GDSF": 0.005, "S3FIFO-blockwise": 0.02, "S3FIFO": 0.02}
# what the arena's S3FIFO, which takes a prompt in whole, lacks of that one on sessions with long chains
COST_OF_WHOLE_PROMPTS = {
    ("claude-code", 1): 0.073,
    ("claude-code", 2): 0.053,
    ("claude-code", 5): 0.021,
    ("claude-code", 10): 0.014,
}
QUICK = [cell for cell in KNOWN if cell[0] != "claude-code"] + [("claude-code", 5)]


def file(name: str) -> Path:
    path = TRACES / FILES[name]
    if not path.exists():
        pytest.skip(f"{path} is missing; set KVPOOL_TRACES to the folder of recorded traces")
    return path


@cache
def requests(name: str) -> list[Request]:
    return list(read(file(name)))


@cache
def distinct(name: str) -> int:
    return len({block for request in requests(name) for block in request.blocks})


def blocks_of(name: str, percent: int) -> int:
    return round(distinct(name) * percent / 100)
