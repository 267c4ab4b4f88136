"""How soon after a restart an agent serves what it held: the worker's, and the container's with its volume.

    python benchmarks/restart.py [--gib 8] [--block-mib 4] [--rounds 5] [--folder DIR] [--sealed]

A real agent and the stand-in engine. The arena and the disk are filled once, each prompt asked twice. Then the worker
is killed, so many times; then the container ended and started anew, with its volume and an empty arena. What is told is
the time from there to the end of the first request that is served whole from the pool, of which is taken off what the
same request takes a moment later. The prompt is another one each time, drawn from all. The engine of the first lives
on; that of the second attaches anew.
"""

import argparse
import base64
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / part) for part in ("agent", "tests/e2e", "examples/demo")]

import rounds  # noqa: E402
from agent_pool import AgentPool, Node  # noqa: E402
from replica import wait_for  # noqa: E402
from standin_engine import prompt  # noqa: E402

GIB, MIB = 2**30, 2**20
BLOCKS = 8  # of a prompt
PATIENCE = 600.0


class Filled:
    def __init__(self, pool: AgentPool, folder: Path, size: int, block: int, sealed: bool) -> None:
        self.count, self.block = size // (BLOCKS * block), block
        self.draw = random.Random(1)
        spaces = []
        if sealed:
            (folder / "key").write_bytes(base64.b64encode(b"k" * 32))
            spaces = [{"name": "all", "keyFile": str(folder / "key")}]
        (folder / "disk").mkdir()
        self.node: Node = pool.node(
            "a",
            arenaBytes=size + size // 8,
            disk={"path": str(folder / "disk"), "bytes": 2 * size},
            prewarm={"maxBytes": 0},
            cacheNamespaces=spaces,
        ).impatient()
        self.attach()
        for number in range(self.count):
            tokens = prompt(f"{number}", BLOCKS)
            self.ask(tokens)
            wait_for("stored", lambda n=number: self.arena() >= (n + 1) * BLOCKS, PATIENCE, 0.01)
            self.node.until_knows(tokens)
            self.ask(tokens)
            wait_for("written", lambda n=number: self.written() >= (n - 8) * BLOCKS, PATIENCE, 0.01)
        wait_for("all written", lambda: self.written() == self.count * BLOCKS, PATIENCE, 0.1)

    def arena(self) -> int:
        return self.node.status().arena.blocks

    def written(self) -> int:
        return self.node.status().disk.blocks

    def attach(self) -> None:
        self.node.start().attach(row_bytes=self.block, rows=2 * BLOCKS)

    def ask(self, tokens: list[int]) -> int:
        self.node.engine.forget()
        served = self.node.engine.serve(tokens)
        assert served.equal
        return served.pool

    def first_hit(self, began: float) -> float:
        tokens = prompt(f"{self.draw.randrange(self.count)}", BLOCKS)
        wait_for("a hit", lambda: self.ask(tokens) == BLOCKS, PATIENCE, 0.001)
        hit = time.monotonic()
        self.ask(tokens)
        return hit - began - (time.monotonic() - hit)

    def worker(self) -> float:
        began = time.monotonic()
        self.node.kill_worker()
        return self.first_hit(began)

    def container(self) -> float:
        self.node.close_engines()
        self.node.replica.stop_agent()
        began = time.monotonic()
        self.attach()
        return self.first_hit(began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=8.0)
    parser.add_argument("--block-mib", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="of the disk; a temporary one by default")
    parser.add_argument("--sealed", action="store_true", help="files are sealed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        pool = AgentPool(Path(made))
        try:
            size = int(options.gib * GIB)
            filled = Filled(pool, Path(made), size, options.block_mib * MIB, options.sealed)
            worker = [filled.worker() for _ in range(options.rounds)]
            container = [filled.container() for _ in range(options.rounds)]
        finally:
            pool.stop()
    print(rounds.machine())
    print(f"{options.gib} GiB in blocks of {options.block_mib} MiB, sealed: {options.sealed}")
    for name, seconds in (("worker", worker), ("container", container)):
        print(
            f"{name:10} first hit after {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"
        )


if __name__ == "__main__":
    main()
