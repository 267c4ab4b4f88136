"""What the arena's index costs, and whether that depends on the number of blocks: calls per second, no bytes moved.

    python benchmarks/arena.py [--blocks 100000 1000000] [--rounds 5] [--eviction GDSF]

Arenas of each size, filled with chains of 64 blocks, side by side in one run. In each round each one does the same, in
an order drawn anew: looks 1,000 chains up under a lease, counts their use, and stores 1,000 chains, for each block of
which another has to go. The ratio of the sizes is taken within a round; the smallest against itself (A/A) is the noise.
"""

import argparse
import random
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "agent"))

import rounds  # noqa: E402

from kvpool_agent.store.arena import Arena  # noqa: E402

CHAIN, CHAINS = 64, 1_000


class Filled:
    """An arena full of chains, of which some are looked up and new ones stored."""

    def __init__(self, blocks: int, eviction: str) -> None:
        self.arena = Arena(blocks, eviction=eviction, owned_percent=100)
        self.draw = random.Random(blocks)
        self.last = 0
        for _ in range(blocks // CHAIN):
            self.store()

    def chain(self, number: int) -> list[bytes]:
        return [(number * CHAIN + i).to_bytes(16, "little") for i in range(CHAIN)]

    def store(self) -> None:
        self.last += 1
        parent = b""
        keys = self.chain(self.last)
        for key, slot in zip(keys, self.arena.reserve(CHAIN, 0.0), strict=True):
            self.arena.commit(key, parent, slot, b"", foreign=False)
            parent = key

    def stores(self) -> float:
        return CHAINS * CHAIN / rounds.timed(lambda: [self.store() for _ in range(CHAINS)])

    def lookups(self) -> float:
        recent = range(max(1, self.last - self.arena.slot_count // (2 * CHAIN)), self.last)
        chains = [self.chain(self.draw.choice(recent)) for _ in range(CHAINS)]

        def look() -> None:
            for keys in chains:
                lease, _ = self.arena.lease(keys, 0.0, 1.0)
                self.arena.use(keys)
                self.arena.release(lease)

        return CHAINS * CHAIN / rounds.timed(look)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--eviction", default="GDSF", choices=["GDSF", "LRU", "S3FIFO"])
    options = parser.parse_args()
    print(rounds.machine())
    sizes = {f"{blocks:,}": blocks for blocks in sorted(options.blocks)}
    first = next(iter(sizes))
    arenas = {name: Filled(blocks, options.eviction) for name, blocks in sizes.items()}
    arenas[f"{first} again"] = Filled(sizes[first], options.eviction)
    for what in ("lookups", "stores"):
        found = rounds.run({name: getattr(arena, what) for name, arena in arenas.items()}, options.rounds)
        for name, rates in found.items():
            ratio = "" if name == first else f", {rounds.ratio(rates, found[first])} of {first}"
            print(f"{what} of blocks per second, arena of {name}: {sorted(rates)[len(rates) // 2]:,.0f}{ratio}")


if __name__ == "__main__":
    main()
