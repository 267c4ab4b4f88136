"""What an agent holds of its machine: memory, descriptors, threads; and whether that grows."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent_pool import Node
from replica import MIB

OVERHEAD = 64 * MIB  # of an agent beyond its arena, supervisor included
WINDOWS = 12


@dataclass(frozen=True)
class Use:
    """Of supervisor and worker together. `arena`: bytes of the arena's pages that exist; `anonymous`: bytes of memory
    of their own. What they map of the engine's memory belongs to the engine."""

    descriptors: int
    threads: int
    anonymous: int
    arena: int

    @property
    def memory(self) -> int:
        return self.anonymous + self.arena


def use_of(node: Node) -> Use:
    """Raises OSError, or IndexError, where a process is gone."""
    assert node.replica.agent_process is not None
    processes = [Path(f"/proc/{pid}") for pid in (node.replica.agent_process.pid, node.replica.worker_pid())]
    return Use(
        sum(sum(1 for _ in (process / "fd").iterdir()) for process in processes),
        sum(int(_field(process / "status", "Threads")) for process in processes),
        sum(int(_field(process / "smaps_rollup", "Anonymous").split()[0]) * 1024 for process in processes),
        node.arena_file().stat().st_blocks * 512,
    )


def _field(file: Path, name: str) -> str:
    for line in file.read_text().splitlines():
        word, _, value = line.partition(":")
        if word == name:
            return value
    raise OSError(f"{file} has no {name}")


def try_use_of(node: Node) -> Use | None:
    """None where a process is gone, as one is between two lives."""
    with suppress(OSError, IndexError):
        return use_of(node)
    return None


def stands_still(process: int) -> bool:
    """Whether all of its threads are stopped."""
    tasks = list(Path(f"/proc/{process}/task").iterdir())
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


def growth(samples: Sequence[float]) -> float:
    """How much the floor of a series rises from its beginning to its end.

    What is used for a moment makes peaks, what is lost raises the floor: the samples are cut into windows, each gives
    its least, and a straight line through those (least squares) tells the rise.
    """
    count = min(WINDOWS, len(samples))
    if count < 2:
        return 0.0
    floors = [min(samples[i * len(samples) // count : (i + 1) * len(samples) // count]) for i in range(count)]
    middle, mean = (count - 1) / 2, sum(floors) / count
    slope = sum((i - middle) * (floor - mean) for i, floor in enumerate(floors)) / sum(
        (i - middle) ** 2 for i in range(count)
    )
    return slope * (count - 1)
