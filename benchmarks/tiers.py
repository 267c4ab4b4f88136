"""What the disk tier costs against raw Python on the same device, measured interleaved in one run.

    python benchmarks/tiers.py [--folder DIR] [--rounds 10] [--megabytes 128] [--block-kib 1024]

Each round writes and reads the same bytes each way, in an order drawn anew, each time into new files: through the tier
(queue, lease, every block's tag checked, header, sync, rename, sync of the folder; and back into the arena: reserve,
read, tag, publish), through one whose files are sealed, and as bare `pwritev` and `preadv` of the same memory past the
page cache with one sync a file. Figures are medians over the rounds and the median of each round's ratio; A/A is the
bare way against itself, which is the noise of this run.
"""

import argparse
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / part) for part in ("agent", "tests/e2e", "examples/demo")]

import rounds  # noqa: E402
from disk_slab import DiskSlab  # noqa: E402

from kvpool_agent.store.disk.tier import EXTENT_BYTES  # noqa: E402

MIB = 2**20


class Raw:
    """The same bytes in the same memory and as many files, without a tier."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        self.memory = memoryview(mmap.mmap(-1, size))
        self.memory[:] = os.urandom(MIB) * (size // MIB)
        self.files: list[Path] = []

    def write(self) -> float:
        self.clear()
        parts = [self.memory[at : at + EXTENT_BYTES] for at in range(0, self.size, EXTENT_BYTES)]
        began = time.perf_counter()
        for number, part in enumerate(parts):
            path = self.folder / f"raw-{number}"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
            done = 0
            while done < len(part):
                done += os.pwritev(descriptor, [part[done:]], done)
            os.fsync(descriptor)
            os.close(descriptor)
            self.files.append(path)
        return time.perf_counter() - began

    def read(self) -> float:
        began = time.perf_counter()
        for number, path in enumerate(self.files):
            part = self.memory[number * EXTENT_BYTES : (number + 1) * EXTENT_BYTES]
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
            done = 0
            while done < len(part):
                done += os.preadv(descriptor, [part[done:]], done)
            os.close(descriptor)
        return time.perf_counter() - began

    def clear(self) -> None:
        while self.files:
            self.files.pop().unlink()


class Tier:
    def __init__(self, folder: Path, size: int, block: int, keys: Sequence[bytes] = ()) -> None:
        """keys: of its cache namespace, where its files are to be sealed."""
        folder.mkdir()
        self.count = size // block
        self.disk = DiskSlab(folder, slots=2 * self.count, slot_bytes=block, keys=keys).start()
        self.round = 0
        self.numbers: list[int] = []

    def write(self) -> float:
        self.disk.drop(self.numbers)
        self.round += 1
        self.numbers = [self.round * 1_000_000 + n for n in range(self.count)]
        self.disk.put(self.numbers)
        began = time.perf_counter()
        self.disk.use_again(self.numbers)
        while not all(self.disk.stored(self.numbers)):
            time.sleep(0.0005)
        return time.perf_counter() - began

    def read(self) -> float:
        self.disk.drop(self.numbers)
        began = time.perf_counter()
        reason = self.disk.load(self.numbers, 600.0)
        seconds = time.perf_counter() - began
        assert reason == "" and self.disk.right(self.numbers) == [True] * self.count
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None, help="on the device; a temporary folder by default")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--block-kib", type=int, default=1024)
    options = parser.parse_args()
    size, block = options.megabytes * MIB, options.block_kib * 1024
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        folder = Path(made)
        tier, first, second = Tier(folder / "tier", size, block), Raw(folder, size), Raw(folder, size)
        sealed = Tier(folder / "sealed", size, block, [b"k" * 32])
        second.folder = folder / "again"
        second.folder.mkdir()

        def both(way: "Tier | Raw") -> tuple[float, float]:
            return way.write(), way.read()

        ways = {"tier": tier, "sealed": sealed, "raw": first, "A/A": second}
        found = rounds.run({name: partial(both, way) for name, way in ways.items()}, options.rounds)
        direct = tier.disk.tier._opened._folder.direct
        tier.disk.close()
        sealed.disk.close()
        first.memory.release()
        second.memory.release()
    print(rounds.machine())
    print(f"{options.megabytes} MiB in blocks of {options.block_kib} KiB, past the page cache: {direct}")
    for place, what in enumerate(("write", "read")):
        seconds = {name: [figures[place] for figures in found[name]] for name in found}
        for name in found:
            rate = size / statistics.median(seconds[name]) / 1e9
            print(f"{what:6}{name:7}{rate:8.3f} GB/s   of raw {rounds.ratio(seconds['raw'], seconds[name])}")


if __name__ == "__main__":
    main()
