"""Reuse distances: exact where all keys are followed, bounded and close where a sample is; prompt blocks alone."""

import hashlib
import random

from kvpool_agent.policy.reuse import FOLLOWED_KEYS, REACH, ReuseDistances


def key(n: int) -> bytes:
    return hashlib.blake2b(n.to_bytes(8, "big"), digest_size=16).digest()


def oracle(requests: list[tuple[list[int], int]]) -> list[int]:
    """The same by a list of keys, the last used first."""
    stack: list[int] = []
    counts: dict[int, int] = {}
    for chain, prompt in requests:
        for i, n in enumerate(chain):
            distance = stack.index(n) + 1 if n in stack else 0
            if distance:
                stack.remove(n)
            stack.insert(0, n)
            if i < prompt and distance:
                power = next(p for p in range(64) if distance <= 1 << p)
                counts[power] = counts.get(power, 0) + 1
    return [counts.get(power, 0) for power in range(max(counts) + 1)]


def test_distances_are_those_of_a_list_of_all_keys() -> None:
    draw = random.Random(5)
    requests = []
    for _ in range(400):
        first = draw.choice((0, 40, 80, 300))
        chain = [first + n for n in range(draw.randrange(1, 40))]
        requests.append((chain, draw.randrange(len(chain) + 1)))
    found = ReuseDistances(32)
    for chain, prompt in requests:
        found.request([key(n) for n in chain], prompt)
    assert found.histogram() == oracle(requests)
    assert found.asked == sum(prompt for _, prompt in requests)
    assert found.asked > sum(found.histogram()) > 1000


def test_a_short_history_by_hand() -> None:
    found = ReuseDistances(8)
    found.request([key(1)] * 2, 2)  # again at once: distance 1
    for chain in ([1, 2, 3], [1, 2, 3], [4], [3]):
        found.request([key(n) for n in chain], len(chain))
    # 1 once more at once; 1, 2 and 3 at a distance of three; 3 behind 4
    assert found.histogram() == [2, 1, 3]
    assert found.asked == 10


def test_times_are_given_anew_and_what_is_too_far_counts_as_a_first_use() -> None:
    found = ReuseDistances(1, followed=REACH)
    for _ in range(20):
        for n in range(REACH):
            found.request([key(n)], 1)
    assert found.histogram() == [0, 0, 0, 0, 19 * REACH]
    for _ in range(5):
        for n in range(REACH + 1):
            found.request([key(100 + n)], 1)
    assert found.histogram() == [0, 0, 0, 0, 19 * REACH] and len(found) == 1 + REACH


def test_of_a_large_arena_a_sample_is_followed_and_a_key_of_all_requests_counts_as_near() -> None:
    draw = random.Random(7)
    capacity, sessions = 20_000, 30_000
    found, exact = ReuseDistances(capacity), ReuseDistances(capacity, followed=REACH * capacity)
    for _ in range(40_000):
        session = draw.randrange(1, sessions)
        chain = [key(n) for n in (0, session * 10, session * 10 + 1)]
        found.request(chain, 3)
        exact.request(chain, 3)
    assert len(found) <= 2 * FOLLOWED_KEYS < len(exact)
    assert found.asked == exact.asked == 120_000
    one, other = found.histogram(), exact.histogram()
    within = [abs(sum(one[: i + 1]) - sum(other[: i + 1])) for i in range(2, max(len(one), len(other)))]
    assert max(within) < 0.01 * found.asked and sum(other) > 0.6 * found.asked
    assert other[:2] == [0, 0] and other[2] >= 39_999
