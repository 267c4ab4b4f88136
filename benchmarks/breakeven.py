"""Where admission turns from loading to computing, beside where loading begins to take longer.

    python benchmarks/breakeven.py [--quick]

Three agents in clear, with stand-in engines that sleep for each token that they compute. One holds prompts of 16 MiB;
another one loads them whatever it takes (`loading.mode: Always`), and so measures what loading costs; the third decides
(`Measured`, margin 1, so that the rule is told from its safety). Both reach the first one by a proxy of this program's
that paces what comes back, at rates from 50 MB/s to 5 GB/s; what the machine itself can't carry is the machine's pace.
For several costs of computing: the bandwidth at which a loaded request takes as long as a computed one, the bandwidth
from which on the third agent admits half of its requests or more, both between two rates on a straight line of
logarithms, and their ratio.

Each agent that loads has room for little more than one prompt, so that nothing is found twice.
"""

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
for part in ("agent", "examples/demo", "tests/e2e"):
    sys.path.insert(0, str(REPOSITORY / part))

import rounds  # noqa: E402
from agent_pool import AgentPool, Node  # noqa: E402
from first_token import first_token  # noqa: E402
from standin_engine import BLOCK_TOKENS, prompt  # noqa: E402
from throttled import ThrottledLink  # noqa: E402

MIB = 2**20
BLOCKS, ROW_BYTES, PROMPTS = 16, MIB, 6
TOKENS = BLOCKS * BLOCK_TOKENS
FIRST, LAST, STEPS_A_DECADE = 50e6, 5e9, 10
SHOWN, AT_EACH = 18, 8  # requests that show the agents a new rate (a quantile follows after 16), and that are counted
OFTEN = "import kvpool_agent.policy.tries as tries; tries.TRY_SECONDS = tries.LONGEST_TRY_SECONDS = 0.1"


@dataclass(frozen=True)
class Seen:
    """At one rate: seconds to the first token of a request that was loaded and of one that was computed, and the part
    of its requests that the agent admitted where it chose."""

    rate: float
    loaded: float
    computed: float
    admitted: float


class Bench:
    """The three agents; `seconds`: what computing a prompt takes."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._pool = AgentPool(folder, tls=False)
        self._source = self._pool.node("source", arenaBytes=(PROMPTS * BLOCKS + 16) * MIB).start()
        self._source.attach(row_bytes=ROW_BYTES, rows=PROMPTS * BLOCKS + 32)
        for i in range(PROMPTS):
            self._source.engine.serve(prompt(f"p{i}", BLOCKS))
        self._link = ThrottledLink(self._source.replica.peer_port)
        seeds = folder / "seeds"
        seeds.write_text(f"{self._link.address}\n")
        token = seconds / TOKENS
        self._always, self._chooses = (self._asker(name, mode, seeds, token) for name, mode in ASKERS)
        self._number = 0

    def _asker(self, name: str, mode: str, seeds: Path, token: float) -> Node:
        node = self._pool.node(
            name,
            arenaBytes=(BLOCKS + 12) * MIB,
            members={"file": str(seeds)},
            loading={"mode": mode, "margin": 1.0},
            prewarm={"maxBytes": 0},
        )
        node.patched(OFTEN).start().attach(row_bytes=ROW_BYTES, rows=4 * BLOCKS, token_seconds=token)
        return node.until_sees(self._source).until_knows(*(prompt(f"p{i}", BLOCKS) for i in range(PROMPTS)))

    def close(self) -> None:
        self._link.close()
        self._pool.stop()

    def _ask(self, node: Node, name: str) -> float:
        """Seconds of a request until its first token."""
        node.engine.forget()
        return first_token(node.engine, prompt(name, BLOCKS))

    def at(self, rate: float) -> Seen:
        self._link.bytes_per_second = rate
        self._round(SHOWN)
        before = self._chooses.status().counters
        loaded, computed = self._round(AT_EACH)
        after = self._chooses.status().counters
        refused = after.get("loads_refused", 0) - before.get("loads_refused", 0)
        return Seen(rate, statistics.median(loaded), statistics.median(computed), 1 - refused / AT_EACH)

    def _round(self, requests: int) -> tuple[list[float], list[float]]:
        """Seconds of requests that were loaded, and of those that were computed; the agent that chooses is asked for
        the same prompts as the one that always loads."""
        loaded, computed = [], []
        for _ in range(requests):
            self._number += 1
            name = f"p{self._number % PROMPTS}"
            loaded.append(self._ask(self._always, name))
            computed.append(self._ask(self._always, f"own{self._number}"))
            self._ask(self._chooses, f"other{self._number}")
            self._ask(self._chooses, name)
        return loaded, computed


ASKERS = (("always", "Always"), ("chooses", "Measured"))


def crossing(seen: Sequence[Seen], height: Sequence[float]) -> float:
    """The rate at which `height` falls through 0 on its way to lower rates: the lowest one; nan where it does not."""
    for low, high, below, above in zip(seen, seen[1:], height, height[1:], strict=False):
        if below < 0 <= above:
            part = -below / (above - below)
            return math.exp(math.log(low.rate) + part * (math.log(high.rate) - math.log(low.rate)))
    return math.nan


def rates(quick: bool) -> list[float]:
    steps = round(math.log10(LAST / FIRST) * STEPS_A_DECADE)
    found = [FIRST * 10 ** (i / STEPS_A_DECADE) for i in range(steps + 1)]
    return found[::4] if quick else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Every fourth rate, one cost of computing.")
    parser.add_argument("--milliseconds", type=float, nargs="+", default=[], help="Costs of computing a prompt.")
    parser.add_argument("--rates", type=float, nargs="+", default=[], help="MB/s, rising, instead of the whole sweep.")
    given = parser.parse_args()
    print(f"{rounds.machine()}; prompts of {BLOCKS * ROW_BYTES // MIB} MiB in {BLOCKS} blocks\n")
    for milliseconds in given.milliseconds or ([150] if given.quick else [250, 150, 80]):
        print("| MB/s | loaded, ms | computed, ms | admitted |\n|---|---|---|---|", flush=True)
        seen = []
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder), milliseconds / 1e3)
            try:
                for rate in [1e6 * rate for rate in given.rates] or rates(given.quick):
                    one = bench.at(rate)
                    seen.append(one)
                    print(
                        f"| {one.rate / 1e6:.0f} | {one.loaded * 1e3:.0f} | {one.computed * 1e3:.0f} "
                        f"| {one.admitted:.2f} |",
                        flush=True,
                    )
            finally:
                bench.close()
        measured = crossing(seen, [math.log(one.computed / one.loaded) for one in seen])
        switched = crossing(seen, [one.admitted - 0.5 for one in seen])
        print(
            f"\ncomputing takes {milliseconds:.0f} ms: loading takes as long at {measured / 1e6:.0f} MB/s, admission "
            f"switches at {switched / 1e6:.0f} MB/s: ratio {switched / measured:.2f}\n",
            flush=True,
        )


if __name__ == "__main__":
    main()
