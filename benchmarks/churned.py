"""Requests under churn and without, wherever their agents run: the ways of `churn.py`, a round of one, and the figures.

A way with churn has an arena that one round's prompts fill, and a disk; every prompt is asked for twice, so that all of
it is written there while the next ones are computed and loaded. One without churn is asked for the same, has room for
all of it and no disk. Both are compared with keys, which the files of the disk are then sealed with, and without.
"""

import csv
import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import rounds
from standin_engine import BLOCK_TOKENS, prompt

from kvpool_contract.status import AgentStatus

BLOCKS, ROW_BYTES, PROMPTS = 16, 256 << 10, 8  # of a prompt; prompts of a round
ROWS = 2 * BLOCKS  # of the host pool: when a prompt is asked for again, it is there no more
ROUND_BYTES = PROMPTS * BLOCKS * ROW_BYTES
DISK_BYTES = 2 * ROUND_BYTES
TOKEN_SECONDS = 0.2 / (BLOCKS * BLOCK_TOKENS)
BEHIND = 2  # prompts between the first and the second request for one
KINDS = COMPUTED, LOADED = "computed", "loaded"

Round = dict[str, list[float]]  # seconds to the first token, by kind of request


@dataclass(frozen=True)
class Way:
    """`beside`: the name of what it is compared with."""

    name: str
    beside: str
    churn: bool = False
    keys: bool = False


WAYS = (
    Way("no churn", "no churn"),
    Way("no churn too", "no churn"),
    Way("churn, disk", "no churn", churn=True),
    Way("keys, no churn", "keys, no churn", keys=True),
    Way("keys, no churn too", "keys, no churn", keys=True),
    Way("keys, churn, sealed disk", "keys, no churn", churn=True, keys=True),
)


class Churned(ABC):
    """An agent and its engine."""

    def __init__(self, way: Way) -> None:
        self.way, self._number = way, 0

    @abstractmethod
    def first_token(self, tokens: list[int]) -> float:
        """Seconds until the first token of a request for this prompt, whose bytes were compared."""

    @abstractmethod
    def until_knows(self, tokens: list[int]) -> None:
        """Until the engine does not take the prompt for one that nobody knows."""

    @abstractmethod
    def status(self) -> AgentStatus:
        """Of the agent, now."""

    def round(self) -> Round:
        found: Round = {kind: [] for kind in KINDS}
        for _ in range(PROMPTS):
            self._number += 1
            found[COMPUTED].append(self.first_token(_prompt(self._number)))
            if self._number > BEHIND:
                before = _prompt(self._number - BEHIND)
                self.until_knows(before)
                found[LOADED].append(self.first_token(before))
        return found

    def check(self) -> None:
        """Raises AssertionError where not everything was churned as it was meant to be."""
        status = self.status()
        asked = self._number - BEHIND
        assert status.hits.local_blocks == asked * BLOCKS, status.misses
        written = status.transfers["disk_out"].blocks if "disk_out" in status.transfers else 0
        evicted = status.arena.evicted_blocks
        print(f"{self.way.name}: {asked} prompts of {BLOCKS} blocks loaded, {evicted} evicted, {written} written")
        assert (written > 0) is (evicted > 0) is self.way.churn


def arena_bytes(way: Way, count: int) -> int:
    """count: of rounds; one more warms up, and one is to spare."""
    return ROUND_BYTES * (1 if way.churn else count + 2)


def _prompt(number: int) -> list[int]:
    return prompt(f"churn-{number}", BLOCKS)


def told(found: Mapping[str, Sequence[Round]]) -> None:
    """found: rounds by the names of ways."""
    for kind in KINDS:
        medians = {name: [statistics.median(each[kind]) for each in of] for name, of in found.items()}
        for way in WAYS:
            every = [seconds for each in found[way.name] for seconds in each[kind]]
            beside = rounds.ratio(medians[way.name], medians[way.beside])
            print(
                f"{kind:9} {way.name:25} {len(every):4} requests, median {statistics.median(every) * 1e3:6.1f} ms, "
                f"p99 {rounds.p99(every) * 1e3:6.1f} ms, {beside} of {way.beside}"
            )


def write(file: Path, found: Mapping[str, Sequence[Round]]) -> None:
    """Every request."""
    with file.open("w", newline="") as out:
        lines = csv.writer(out)
        lines.writerow(("way", "round", "kind", "ms"))
        for name, of in found.items():
            for number, each in enumerate(of, 1):
                lines.writerows((name, number, kind, f"{1e3 * s:.1f}") for kind in KINDS for s in each[kind])
