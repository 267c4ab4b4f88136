"""The ghost's estimates: exact where all keys are followed, bounded else, fair to one key that everybody asks for."""

import hashlib
import random

from kvpool_agent.policy.ghost import FOLLOWED_KEYS, Ghost


def key(n: int) -> bytes:
    return hashlib.blake2b(n.to_bytes(8, "big"), digest_size=16).digest()


def test_a_small_arenas_estimate_is_exact_and_counts_prompt_blocks_alone() -> None:
    ghost = Ghost(2, "LRU")
    for chain, prompt in (([1, 2, 9], 2), ([3, 4], 2), ([1, 2], 2), ([3, 4], 2)):
        ghost.request([key(n) for n in chain], prompt)
    # of two blocks nothing stays until it is asked for again; of four all but what the request's own end took
    assert (ghost.asked, ghost.hits) == (8, 0)
    assert ghost.double_hits == 4


def test_of_a_large_arena_a_bounded_sample_is_followed_and_a_key_of_all_requests_counts_as_found() -> None:
    draw = random.Random(3)
    ghost = Ghost(20_000, "GDSF")
    known = 0
    seen: set[int] = set()
    for _ in range(20_000):
        session = draw.randrange(1, 30_000)
        chain = [0, session * 10, session * 10 + 1]
        known += next((i for i, n in enumerate(chain) if n not in seen), 3)
        seen.update(chain)
        ghost.request([key(n) for n in chain], 3)
    assert ghost.asked == 60_000 and len(ghost._two) <= FOLLOWED_KEYS
    # twice the arena holds nearly all of the blocks there are; the key of all is a third of all that is asked
    assert abs(ghost.double_hits - known) < 0.03 * ghost.asked and known > 0.3 * ghost.asked
