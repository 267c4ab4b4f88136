"""What the arena's index costs, and whether that depends on the number of blocks: calls per second, no bytes moved.

    python benchmarks/arena.py [--blocks 100000 1000000] [--rounds 5] [--eviction GDSF]

Arenas of each size, filled with chains of 64 blocks, side by side in one run. In each round each one does the same, in
an order drawn anew: looks 1,000 chains up under a lease and counts their use; evicts, to have room for 1,000 others;
and inserts these. The ratio of the sizes is taken within a round; the smallest against itself (A/A) is the noise.
"""

import argparse
import random
import statistics
import sys
import time
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
        for _ in range(blocks // CHAIN + 1):
            self.store()

    def chain(self, number: int) -> list[bytes]:
        return [(number * CHAIN + i).to_bytes(16, "little") for i in range(CHAIN)]

    def store(self) -> tuple[float, float]:
        """A chain; the seconds that its room and its blocks took."""
        self.last += 1
        keys, parent = self.chain(self.last), b""
        began = time.perf_counter()
        slots = self.arena.reserve(CHAIN, 0.0)
        reserved = time.perf_counter()
        for key, slot in zip(keys, slots, strict=True):
            self.arena.commit(key, parent, slot, b"", foreign=False)
            parent = key
        return reserved - began, time.perf_counter() - reserved

    def stores(self) -> dict[str, float]:
        before = self.arena.evicted
        seconds = [self.store() for _ in range(CHAINS)]
        assert self.arena.evicted - before == CHAINS * CHAIN
        evicting, inserting = (sum(one[i] for one in seconds) for i in (0, 1))
        return {"evictions": CHAINS * CHAIN / evicting, "inserts": CHAINS * CHAIN / inserting}

    def lookups(self) -> dict[str, float]:
        recent = range(max(1, self.last - self.arena.slot_count // (2 * CHAIN)), self.last)
        chains = [self.chain(self.draw.choice(recent)) for _ in range(CHAINS)]

        def look() -> None:
            for keys in chains:
                lease, _ = self.arena.lease(keys, 0.0, 1.0)
                self.arena.use(keys)
                self.arena.release(lease)

        return {"lookups": CHAINS * CHAIN / rounds.timed(look)}

    def all(self) -> dict[str, float]:
        """Blocks per second of each."""
        return self.lookups() | self.stores()


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
    found = rounds.run({name: arena.all for name, arena in arenas.items()}, options.rounds)
    for what in ("inserts", "lookups", "evictions"):
        for name in found:
            rates, others = ([one[what] for one in found[each]] for each in (name, first))
            ratio = "" if name == first else f", {rounds.ratio(rates, others)} of {first}"
            print(f"{what} of blocks per second, arena of {name}: {statistics.median(rates):,.0f}{ratio}")


if __name__ == "__main__":
    main()
