"""What evicting and writing to the disk cost the requests beside them.

    python benchmarks/churn.py [--quick] [--pods] [--csv FILE]

Agents under ten arenas of churn, and agents with room for all, each alone with a stand-in engine that sleeps for each
token that it computes (`churned.py`). All ways in every round, in an order drawn anew; those without churn are
there twice, which is the noise. Seconds to the first token of requests that were computed, and of those that were
loaded from the arena.

With `--pods` each is a pod of a cluster of two nodes, whose agent has a limit of memory 128 MiB above its arena, and
its disk a volume (`churn_pods.py`); then no container may have ended, and none may have grown.
"""

import argparse
import base64
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
for part in ("agent", "operator", "examples/demo", "tests/e2e"):
    sys.path.insert(0, str(REPOSITORY / part))

import churned  # noqa: E402
import rounds  # noqa: E402
from agent_pool import AgentPool, Node  # noqa: E402
from churn_pods import pods  # noqa: E402
from churned import Churned, Way  # noqa: E402
from first_token import first_token  # noqa: E402
from replica import MIB  # noqa: E402

from kvpool_contract.status import AgentStatus  # noqa: E402


class Process(Churned):
    """An agent of this machine, with its engine in this process."""

    def __init__(self, way: Way, node: Node) -> None:
        super().__init__(way)
        self._node = node

    def first_token(self, tokens: list[int]) -> float:
        return first_token(self._node.engine, tokens)

    def until_knows(self, tokens: list[int]) -> None:
        self._node.until_knows(tokens)

    def status(self) -> AgentStatus:
        return self._node.status()


@contextmanager
def processes(folder: Path, count: int) -> Iterator[list[Churned]]:
    """count: of rounds."""
    with ExitStack() as stack:
        made: list[Churned] = []
        for number, way in enumerate(churned.WAYS):
            (own := folder / str(number)).mkdir()
            pool = AgentPool(own)
            stack.callback(pool.stop)
            made.append(Process(way, _joined(pool, own, way, count)))
        yield made


def _joined(pool: AgentPool, folder: Path, way: Way, count: int) -> Node:
    agent: dict[str, object] = {"arenaBytes": churned.arena_bytes(way, count), "eviction": "LRU"}
    if way.churn:
        (folder / "disk").mkdir()
        agent["disk"] = {"path": str(folder / "disk"), "bytes": churned.DISK_BYTES}
    if way.keys:
        key = folder / "key"
        key.write_bytes(base64.b64encode(bytes(32)))
        agent["cacheNamespaces"] = [{"name": "all", "keyFile": str(key)}]
    node = pool.node("a", loading={"mode": "Always"}, prewarm={"maxBytes": 0}, **agent).start()
    if way.churn:
        node.until("its disk", lambda status: status.disk.state == "ready")
    return node.attach(row_bytes=churned.ROW_BYTES, rows=churned.ROWS, token_seconds=churned.TOKEN_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds: to see that it works")
    parser.add_argument("--rounds", type=int, default=10, help="one is an arena of churn")
    parser.add_argument("--pods", action="store_true", help="in a cluster of the testbed")
    parser.add_argument("--csv", type=Path, help="where every request's milliseconds are written")
    given = parser.parse_args()
    count = 2 if given.quick else given.rounds
    with tempfile.TemporaryDirectory() as folder, (pods if given.pods else processes)(Path(folder), count) as made:
        print(f"{rounds.machine()}; {churned.ROUND_BYTES // MIB} MiB a round", flush=True)
        ways: dict[str, Callable[[], churned.Round]] = {each.way.name: each.round for each in made}
        found = rounds.run(ways, count)
        for each in made:
            each.check()
    churned.told(found)
    if given.csv:
        churned.write(given.csv, found)


if __name__ == "__main__":
    main()
