"""What the planner says from a sample of a trace's blocks is what a replay of all of them finds: hit rates within two
points, bytes read from other replicas within a fifth; and what it says of chats, of retrieval and of agents.

`make test` does one trace; KVPOOL_WHOLE_TRACES=1, as in `make soak`, all five.
"""

import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiers.recorded import TRACES

from kvpool_lab.fleet import Hardware
from kvpool_lab.newcomers import POPULARITY, RECENCY, Gains, Newcomers
from kvpool_lab.planner import Routed, census, curve, fleets
from kvpool_lab.recorded import Request
from kvpool_lab.routing import ROUND_ROBIN, STICKY
from kvpool_lab.sample import Sample
from kvpool_lab.traces import read

WHOLE = os.environ.get("KVPOOL_WHOLE_TRACES") == "1"
REPLICAS, BYTES_PER_TOKEN = 4, 131072
ALL = 1 << 40  # blocks to follow


@dataclass(frozen=True)
class Trace:
    """Where a trace lies, the tokens of its blocks where it does not say, how many requests of it, and how many blocks
    the planner follows."""

    file: str
    block_tokens: int
    follow: int
    requests: int | None = None

    def opened(self, _what: str) -> Iterable[Request]:
        path: Path = TRACES / self.file
        if not path.exists():
            pytest.skip(f"{path} is missing; set KVPOOL_TRACES to the folder of recorded traces")
        return itertools.islice(read(path, self.block_tokens), self.requests)

    def sample(self, follow: int) -> Sample:
        return census(self.opened, follow).sample()

    def replicas(self, follow: int) -> list[Routed]:
        """Engines that hold a hundredth of the blocks each, arenas that hold a twentieth."""
        held = census(self.opened, follow)
        sample = held.sample()
        hardware = Hardware(REPLICAS, sample.distinct // 100, sample.distinct // 20, "GDSF")
        return fleets(self.opened, sample, hardware, (ROUND_ROBIN, STICKY), began=held.began)


QUICK = Trace("mooncake/synthetic_trace.jsonl", 512, 6_000, requests=1500)
FIVE = {
    "conversation": Trace("mooncake/conversation_trace.jsonl", 512, 32_768),
    "synthetic": Trace("mooncake/synthetic_trace.jsonl", 512, 16_384),
    "agents": Trace("claude_code_weka/cc_merged300_b512.jsonl.gz", 512, 46_000),
    "agents, in small blocks": Trace("claude_code_weka/sessions_delta.jsonl.xz", 64, 32_768, requests=1500),
    "retrieval": Trace("ragpulse/ragpulse_chained_b64.jsonl.gz", 64, 32_768),
}


@pytest.mark.parametrize("name", [*FIVE] if WHOLE else ["synthetic, its beginning"])
def test_a_plan_from_a_sample_is_what_a_replay_of_all_blocks_finds(name: str) -> None:
    trace = FIVE.get(name, QUICK)
    seconds = census(trace.opened, 1000).seconds
    assert trace.sample(trace.follow).rate < 0.5
    for planned, found in zip(trace.replicas(trace.follow), trace.replicas(ALL), strict=True):
        assert found.sharing.total.sample.rate == 1
        for one, other in ((planned.sharing.total, found.sharing.total), (planned.alone.total, found.alone.total)):
            assert abs(one.rate(one.near) - other.rate(other.near)) <= 0.02, (name, planned.routing)
            assert abs(one.rate(one.of(one.far)) - other.rate(other.of(other.far))) <= 0.02, (name, planned.routing)
        reads = [
            (each.sharing.total.of(each.sharing.total.far) / seconds, each.sharing.read.worst(
                each.sharing.total.of(each.sharing.total.far), seconds
            ))
            for each in (planned, found)
        ]  # fmt: skip
        if found.sharing.total.rate(found.sharing.total.of(found.sharing.total.far)) >= 0.01:
            for one, other in zip(*reads, strict=True):
                assert abs(one / other - 1) <= 0.2, (name, planned.routing, one, other)


def gains(name: str, sizes: list[float]) -> Gains:
    """sizes: of hot sets, in GB."""
    trace = FIVE[name]
    held = census(trace.opened, trace.follow)
    sample, block = held.sample(), trace.block_tokens * BYTES_PER_TOKEN
    newcomers = Newcomers(sample, held.requests, REPLICAS, [round(size * 1e9 / block) for size in sizes])
    curve(trace.opened, sample, [("LRU", sample.distinct)], 0, newcomers)
    return newcomers.gains


def parts(found: Gains, ranking: str) -> list[float]:
    """Of a full warm-up's gain, by size."""
    return [found.part(each) for each in found.warmed if each.ranking == ranking and each.blocks]


@pytest.mark.skipif(not WHOLE, reason="part of make soak")
def test_chats_gain_hardly_anything_by_a_hot_set() -> None:
    (popular,) = parts(gains("conversation", [48]), POPULARITY)
    assert popular < 0.25


@pytest.mark.skipif(not WHOLE, reason="part of make soak")
def test_retrieval_gains_most_of_it_by_less_than_a_gigabyte() -> None:
    (popular,) = parts(gains("retrieval", [0.9]), POPULARITY)
    assert popular > 0.8


@pytest.mark.skipif(not WHOLE, reason="part of make soak")
def test_agents_gain_more_by_what_is_recent_than_by_what_is_popular() -> None:
    found = gains("agents", [48, 154])
    assert all(
        recent > popular for recent, popular in zip(parts(found, RECENCY), parts(found, POPULARITY), strict=True)
    )
