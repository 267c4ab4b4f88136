"""What writing to the disk costs the requests beside it.

    python benchmarks/churn.py [--quick]

Agents whose arena holds eight prompts, each alone with a stand-in engine that sleeps for each token that it computes,
under ten arenas of churn: every prompt is asked for twice, so that an agent with a disk tier writes all of it, while
the next ones are computed and loaded. Four ways in every round, in an order drawn anew: an arena alone, once more
(which is the noise), with a disk, and with a disk whose files are sealed. Seconds to the first token of requests that
were computed, and of those that were loaded from the arena.
"""

import argparse
import base64
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
for part in ("agent", "examples/demo", "tests/e2e"):
    sys.path.insert(0, str(REPOSITORY / part))

import rounds  # noqa: E402
from agent_pool import AgentPool  # noqa: E402
from first_token import FirstToken  # noqa: E402
from replica import MIB  # noqa: E402
from standin_engine import prompt  # noqa: E402
from standin_model import BLOCK_TOKENS  # noqa: E402

WAYS = ALONE, AGAIN, DISK, SEALED = "arena alone", "arena alone too", "with a disk", "with a sealed disk"
BLOCKS, ROW_BYTES, PROMPTS = 16, 256 << 10, 8  # of a prompt; prompts of a round
ARENA = PROMPTS * BLOCKS * ROW_BYTES
SECONDS = 0.2  # of computing a prompt
BEHIND = 2  # prompts between the first and the second request for one
COMPUTED, LOADED = "computed", "loaded"


class Churned:
    """An agent and its engine; `seconds` by kind of request, for each round."""

    def __init__(self, folder: Path, way: str) -> None:
        folder.mkdir()
        self._pool, self._way, self._number = AgentPool(folder), way, 0
        agent: dict[str, object] = {}
        if way in (DISK, SEALED):
            (folder / "disk").mkdir()
            agent["disk"] = {"path": str(folder / "disk")}
        if way == SEALED:
            key = folder / "key"
            key.write_bytes(base64.b64encode(bytes(32)))
            agent["cacheNamespaces"] = [{"name": "all", "keyFile": str(key)}]
        self._node = self._pool.node(
            "a", arenaBytes=ARENA + MIB, eviction="LRU", loading={"mode": "Always"}, prewarm={"maxBytes": 0}, **agent
        ).start()
        if way in (DISK, SEALED):
            self._node.until("its disk", lambda status: status.disk.state == "ready")
        self._node.attach(row_bytes=ROW_BYTES, rows=2 * BLOCKS, token_seconds=SECONDS / (BLOCKS * BLOCK_TOKENS))
        self._first_token = FirstToken(self._node.engine)

    def round(self) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {COMPUTED: [], LOADED: []}
        for _ in range(PROMPTS):
            self._number += 1
            found[COMPUTED].append(self._ask(self._number))
            if self._number > BEHIND:
                self._node.until_knows(self._prompt(self._number - BEHIND))
                found[LOADED].append(self._ask(self._number - BEHIND))
        return found

    def check(self) -> None:
        """Raises AssertionError where not everything was churned as it was meant to be."""
        status = self._node.status()
        asked = self._number - BEHIND
        assert status.hits.local_blocks == asked * BLOCKS, status.misses
        written = status.transfers["disk_out"].blocks if "disk_out" in status.transfers else 0
        print(f"{self._way}: {asked} prompts of {BLOCKS} blocks loaded, {written} blocks written", flush=True)
        assert (written > 0) is (self._way in (DISK, SEALED))

    def stop(self) -> None:
        self._pool.stop()

    def _ask(self, number: int) -> float:
        self._node.engine.forget()
        return self._first_token.after(self._prompt(number))

    def _prompt(self, number: int) -> list[int]:
        return prompt(f"churn-{number}", BLOCKS)


def told(found: dict[str, list[dict[str, list[float]]]], kind: str) -> None:
    medians = {way: [statistics.median(each[kind]) for each in found[way]] for way in WAYS}
    for way in WAYS:
        every = [seconds for each in found[way] for seconds in each[kind]]
        print(
            f"{kind:9} {way:19} {len(every):4} requests, median {statistics.median(every) * 1e3:6.1f} ms, "
            f"p99 {rounds.p99(every) * 1e3:6.1f} ms, {rounds.ratio(medians[way], medians[ALONE])} of the arena alone"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds: to see that it works")
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    print(f"{rounds.machine()}; {PROMPTS * BLOCKS * ROW_BYTES // MIB} MiB a round", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        made = [Churned(Path(folder) / str(number), way) for number, way in enumerate(WAYS)]
        ways: dict[str, Callable[[], dict[str, list[float]]]] = {
            way: each.round for way, each in zip(WAYS, made, strict=True)
        }
        try:
            found = rounds.run(ways, 2 if given.quick else given.rounds)
            for each in made:
                each.check()
        finally:
            for each in made:
                each.stop()
    for kind in (COMPUTED, LOADED):
        told(found, kind)


if __name__ == "__main__":
    main()
