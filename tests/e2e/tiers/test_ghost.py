"""The estimate that agents keep of an arena twice as large predicts what a replay of that size finds."""

import hashlib
from functools import cache

import pytest
from tiers.recorded import KNOWN, blocks_of, requests

from kvpool_agent.policy.ghost import FOLLOWED_KEYS, Ghost


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
