"""What agents tell of other sizes of their arena, from a sample of the keys, is what all of them would show."""

import hashlib
import itertools
from functools import cache

import pytest
from tiers.recorded import KNOWN, blocks_of, requests

from kvpool_agent.policy.ghost import FOLLOWED_KEYS, Ghost
from kvpool_agent.policy.reuse import REACH, ReuseDistances


@cache
def key(block: int) -> bytes:
    return hashlib.blake2b(block.to_bytes(8, "big"), digest_size=16).digest()


@pytest.mark.parametrize(
    ("name", "percent", "policy"),
    [
        ("conversation", 5, "GDSF"),
        ("conversation", 10, "GDSF"),
        ("conversation", 10, "LRU"),
        ("synthetic", 10, "GDSF"),
        ("claude-code", 5, "GDSF"),
    ],
)
def test_the_ghost_at_one_predicts_the_hit_rate_at_two_within_two_points(name: str, percent: int, policy: str) -> None:
    ghost = Ghost(blocks_of(name, percent), policy)
    for request in requests(name):
        ghost.request([key(block) for block in request.blocks], len(request.blocks))
    column = ("LRU", "GDSF").index(policy)
    double = KNOWN[name, 2 * percent][column]
    assert abs(ghost.double_hits / ghost.asked - double) <= 0.02
    assert len(ghost._two) <= FOLLOWED_KEYS
    if (name, percent) in KNOWN:
        one = KNOWN[name, percent][column]
        assert abs(ghost.hits / ghost.asked - one) <= 0.02
        assert double - one > 0.04  # the two are not one and the same


@pytest.mark.parametrize(("name", "first"), [("conversation", 9), ("synthetic", 0)])
def test_a_samples_reuse_distances_are_those_of_all_keys_within_a_point(name: str, first: int) -> None:
    """Of requests that all begin with the same block from some requests' length on; within four points beyond the
    arena's own size, where fewer keys are followed."""
    capacity = blocks_of(name, 10)
    sampled, whole = ReuseDistances(capacity), ReuseDistances(capacity, followed=REACH * capacity)
    for request in requests(name):
        chain = [key(block) for block in request.blocks]
        for distances in (sampled, whole):
            distances.request(chain, len(chain))
    assert len(sampled) <= 2 * FOLLOWED_KEYS < len(whole)
    shares = [
        [within / distances.asked for within in itertools.accumulate(distances.histogram())]
        for distances in (sampled, whole)
    ]
    apart = [abs(one - other) for one, other in zip(*shares, strict=True)]
    own = capacity.bit_length()
    assert len(apart) > own > 12
    assert max(apart[first:own]) <= 0.01 and max(apart[own:]) <= 0.04
    assert shares[1][own] - shares[1][8] > 0.1  # there is something to tell
