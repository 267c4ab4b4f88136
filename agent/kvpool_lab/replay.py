"""A trace through caches of keys: what an arena of this size would have had under this policy.

The caches are those by which agents estimate their own (`kvpool_agent.policy.keycache`), over the policies that their
arenas use; a test holds them to a real arena, step by step.
One more is S3-FIFO as others replay it. A request's hit is the leading run of blocks that are held.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvpool_agent.policy.eviction import policy_of
from kvpool_agent.policy.keycache import KeyCache
from kvpool_lab.blockwise import BlockwiseS3Fifo
from kvpool_lab.recorded import Request

S3FIFO_BLOCKWISE = "S3FIFO-blockwise"  # no policy of an arena, see kvpool_lab.blockwise


@dataclass
class Outcome:
    """One policy at one capacity in blocks."""

    policy: str
    capacity: int
    hit_tokens: int = 0
    evicted: int = 0


@dataclass
class Replayed:
    """`ideal_tokens`: hits of a cache without bound. Counted from the first request after the warm-up."""

    requests: int = 0
    tokens: int = 0
    block_refs: int = 0
    blocks: int = 0
    ideal_tokens: int = 0
    seconds: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)


def replay(requests: Iterable[Request], wanted: Iterable[tuple[str, int]], warm_up: int = 0) -> Replayed:
    """One pass for all (policy, capacity in blocks). warm_up: requests that are replayed and not counted."""
    began = time.monotonic()
    caches = [(Outcome(policy, capacity), cache_of(policy, capacity)) for policy, capacity in wanted]
    seen: set[int] = set()
    found = Replayed()
    for number, request in enumerate(requests):
        counts = number >= warm_up
        run = _known(request, seen)
        for outcome, cache in caches:
            hits = cache.request(request.blocks)
            outcome.hit_tokens += counts * request.tokens_of(hits)
        found.requests += counts
        found.tokens += counts * request.tokens
        found.block_refs += counts * len(request.blocks)
        found.ideal_tokens += counts * request.tokens_of(run)
    for outcome, cache in caches:
        outcome.evicted = cache.evicted
    found.blocks, found.seconds = len(seen), time.monotonic() - began
    found.outcomes = [outcome for outcome, _ in caches]
    return found


def cache_of(policy: str, capacity: int) -> KeyCache[int] | BlockwiseS3Fifo[int]:
    """capacity in blocks."""
    return BlockwiseS3Fifo(capacity) if policy == S3FIFO_BLOCKWISE else KeyCache(capacity, policy_of(policy))


def _known(request: Request, seen: set[int]) -> int:
    run = next((i for i, block in enumerate(request.blocks) if block not in seen), len(request.blocks))
    seen.update(request.blocks[run:])
    return run
