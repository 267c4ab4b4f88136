"""What the planner says of the requests that `sharing.py` has measured, beside what sharing did to them.

    python benchmarks/planned.py [benchmarks/results/sharing.csv]

Of each picture the requests of the joined servers, in their order and with what they have in common, become a trace,
and `kvpool plan` is given it with the median that the bare servers took for a prompt and with the way between the
replicas: what the proxy let through in `slow`, what `transfer.py` has measured inside TLS in `steady`. Measured is the
part of the time to the first token that sharing saved, in the median: of the bare servers' in `steady`, in `slow` of
what the same servers took for a `fresh` prompt (sharing.py says why).
"""

import csv
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sharing import ASKED, FRESH, JOINED, OWN_TOKENS, SLOW, STEADY

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results" / "sharing.csv"
BLOCK_TOKENS, BLOCKS = 128, 5  # of sharing.py's default prefixes
TOKENS = BLOCKS * BLOCK_TOKENS + OWN_TOKENS
BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2  # SmolLM2-135M in bfloat16: layers, keys and values, heads, their size, bytes
PATHS = {STEADY: "tls=500M,0.002", SLOW: "proxy=10M,0.002"}  # bytes a second, seconds before the first one
Rows = Sequence[dict[str, str]]


def trace(rows: Rows) -> str:
    """In Mooncake's format. One replica computes each round's prefix and others are asked, so requests go round."""
    lines = []
    for number, row in enumerate(rows):
        prefix = int(row["round"]) * 2 + (row["wave"] == FRESH)
        ids = [prefix * BLOCKS + block for block in range(BLOCKS)]
        own = 10**9 + number
        told = {"timestamp": number * 500, "input_length": TOKENS, "hash_ids": [*ids, own], "class": row["wave"]}
        lines.append(json.dumps(told))
    return "\n".join(lines)


def verdicts(rows: Rows, path: str, seconds: float) -> dict[str, tuple[str, float]]:
    """By class, what the planner says and the part of the time to first tokens that it expects sharing to save."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write(trace(rows))
        file.flush()
        options = {
            "trace": file.name, "block-tokens": BLOCK_TOKENS, "bytes-per-token": BYTES_PER_TOKEN, "replicas": 3,
            "routing": "round-robin", "engine-cache": "256Mi", "arena": "512Mi", "path": path,
            "prefill": f"{TOKENS}={seconds}", "output": "json",
        }  # fmt: skip
        command = [
            sys.executable,
            "-m",
            "kvpool_cli",
            "plan",
            *(f"--{name}={value}" for name, value in options.items()),
        ]
        environment = {"PYTHONPATH": f"{REPOSITORY / 'agent'}:{REPOSITORY / 'operator'}"}
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
    return {each["class"]: (each["verdict"], each["saved"]) for each in json.loads(said)["verdicts"]}


def median(rows: Rows, wave: str, *, joined: bool) -> float:
    return statistics.median(int(r["ms"]) for r in rows if r["wave"] == wave and (r["arm"] == JOINED) is joined) / 1000


def saved(rows: Rows, picture: str, wave: str) -> float:
    """The part of the time to the first token that the joined servers saved."""
    without = median(rows, wave, joined=False) if picture == STEADY else median(rows, FRESH, joined=True)
    return 1 - median(rows, wave, joined=True) / without


def main() -> None:
    results = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    with results.open() as file:
        measured = [row for row in csv.DictReader(file) if int(row["round"]) >= 0]
    print("| picture | requests | the planner says | saves, it says | saved, measured |\n|---|---|---|---|---|")
    for picture, path in PATHS.items():
        rows = [row for row in measured if row["picture"] == picture]
        bare = median(rows, ASKED, joined=False)
        said = verdicts([row for row in rows if row["arm"] == JOINED], path, bare)
        for wave, (verdict, expected) in said.items():
            if picture == STEADY or wave == ASKED:
                part = saved(rows, picture, wave)
                print(f"| {picture} | {wave} | {verdict} | {100 * expected:.0f} % | {100 * part:.0f} % |")


if __name__ == "__main__":
    main()
