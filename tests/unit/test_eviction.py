"""Eviction policies against the same rules written down naively, and what sets them apart."""

import random
from collections.abc import Callable

import pytest

from kvpool_agent.policy.eviction import Policy, Ranked, policy_of
from kvpool_agent.policy.keycache import KeyCache
from kvpool_agent.policy.s3fifo import ROUNDS, SMALL_PART, S3Fifo
from kvpool_agent.store.arena import Arena


class NaiveRanked:
    """The lowest (rank, last use) of the free ones, found by looking at all of them."""

    def __init__(self, cap: int) -> None:
        self.cap, self.clock, self.tick = cap, 0.0, 0
        self.rank: dict[int, tuple[float, int]] = {}
        self.uses: dict[int, int] = {}

    def come(self, n: int) -> None:
        self.uses[n] = 0
        self.touch(n)

    def use(self, n: int) -> None:
        self.uses[n] += 1
        self.touch(n)

    def touch(self, n: int) -> None:
        self.tick += 1
        self.rank[n] = (self.clock + min(max(1, self.uses[n]), self.cap), self.tick)

    def go(self, n: int, evicted: bool) -> None:
        if evicted:
            self.clock = max(self.clock, self.rank[n][0])
        del self.rank[n], self.uses[n]

    def next(self, free: set[int]) -> int | None:
        return min(free, key=self.rank.__getitem__, default=None)


class NaiveS3Fifo:
    """The published algorithm, in lists."""

    def __init__(self) -> None:
        self.small: list[int] = []
        self.main: list[int] = []
        self.left: list[int] = []
        self.uses: dict[int, int] = {}

    def come(self, n: int) -> None:
        self.uses[n] = 0
        (self.main if n in self.left else self.small).append(n)
        self.left = [each for each in self.left if each != n]

    def next(self) -> int | None:
        while self.uses:
            small = self.small and (len(self.small) > SMALL_PART * len(self.uses) or not self.main)
            n = self.small[0] if small else self.main[0]
            if self.uses[n] <= 1:
                return n
            (self.small if small else self.main).remove(n)
            self.main.append(n)
            self.uses[n] = 1 if small else self.uses[n] - 1
        return None

    def go(self, n: int, evicted: bool) -> None:
        del self.uses[n]
        if n in self.small and evicted:
            self.left.append(n)
            while len(self.left) > (1 - SMALL_PART) * (len(self.uses) + 1):
                self.left.pop(0)
        self.small, self.main = ([each for each in queue if each != n] for queue in (self.small, self.main))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("policy", "naive"),
    [
        (lambda: Ranked(0), lambda: NaiveRanked(0)),
        (lambda: Ranked(4), lambda: NaiveRanked(4)),
    ],
    ids=["LRU", "GDSF"],
)
def test_a_random_history_agrees_with_the_rule_written_down(
    policy: Callable[[], Policy[int]], naive: Callable[[], NaiveRanked], seed: int
) -> None:
    draw, made, model = random.Random(seed), policy(), naive()
    here: set[int] = set()
    free: set[int] = set()
    for n in range(3000):
        each = draw.choice(sorted(here)) if here else 0
        what = draw.choice(["come", "use", "use", "touch", "bind", "free", "free", "evict", "go"])
        if what == "come" or not here:
            made.come(n)
            model.come(n)
            here.add(n)
        elif what == "evict":
            victim = made.next()
            assert victim == made.next() == model.next(free)
            if victim is not None:
                made.go(victim, evicted=True)
                model.go(victim, evicted=True)
                here.discard(victim)
                free.discard(victim)
        elif what == "go":
            made.go(each, evicted=False)
            model.go(each, evicted=False)
            here.discard(each)
            free.discard(each)
        elif what in ("use", "touch"):
            getattr(made, what)(each)
            getattr(model, what)(each)
        else:
            getattr(made, what)(each)
            (free.add if what == "free" else free.discard)(each)
        assert len(made) == len(here)


@pytest.mark.parametrize("seed", range(6))
def test_s3_fifo_is_the_published_algorithm_where_nothing_is_bound(seed: int) -> None:
    draw, made, model = random.Random(seed), S3Fifo[int](), NaiveS3Fifo()
    capacity = draw.randint(5, 40)
    again = 0
    for _ in range(4000):
        n = min(int(draw.expovariate(0.03)), 150)
        if n not in model.uses:
            if len(model.uses) >= capacity:
                victim = made.next()
                assert victim == model.next()
                made.go(victim, evicted=True)
                model.go(victim, evicted=True)
            again += n in model.left
            made.come(n)
            made.free(n)
            model.come(n)
        made.use(n)
        model.uses[n] = min(model.uses[n] + 1, ROUNDS + 1)
        if draw.random() < 0.02:
            each = draw.choice(sorted(model.uses))
            made.go(each, evicted=False)
            model.go(each, evicted=False)
        assert len(made) == len(model.uses)
    assert again > 50  # the memory of who left was of use


@pytest.mark.parametrize("name", ["LRU", "GDSF", "S3FIFO"])
def test_a_bound_block_is_never_named_and_when_it_is_free_it_comes_up_before_later_ones(name: str) -> None:
    policy = policy_of(name)
    for n in range(5):
        policy.come(n)
    assert policy.next() is None
    for n in (1, 2, 4):
        policy.free(n)
    assert policy.next() == 1
    policy.free(0)
    assert policy.next() == 0
    policy.bind(0)
    policy.bind(1)
    assert policy.next() == 2


def test_a_block_of_many_requests_outlives_fresher_ones_under_gdsf_and_not_under_lru() -> None:
    for name, first in (("LRU", 0), ("GDSF", 1)):
        policy = policy_of(name)
        for n in range(3):
            policy.come(n)
            policy.free(n)
        for _ in range(9):
            policy.use(0)
        for n in (1, 2):
            policy.touch(n)
        assert policy.next() == first


def test_under_gdsf_a_past_of_many_requests_counts_as_four() -> None:
    """Of sessions that have ended nothing stays for long."""
    policy: Policy[int] = Ranked(4)
    policy.come(0)
    policy.free(0)
    for _ in range(1000):
        policy.use(0)
    evicted = 0
    for n in range(1, 1000):
        policy.come(n)
        policy.use(n)
        policy.free(n)
        if n > 2:
            victim = policy.next()
            policy.go(victim, evicted=True)
            evicted += 1
            if victim == 0:
                break
    assert evicted < 20


def chains(seed: int, requests: int) -> list[list[int]]:
    """Requests of sessions that grow and come back, all behind one common beginning."""
    draw = random.Random(seed)
    sessions: list[list[int]] = [[0, 1] for _ in range(12)]
    made, block = [], 2
    for _ in range(requests):
        session = sessions[min(int(draw.expovariate(0.4)), 11)]
        if len(session) > 30 or draw.random() < 0.05:
            del session[draw.randrange(2, len(session) + 1) :]
        for _ in range(draw.randint(0, 6)):
            session.append(block)
            block += 1
        made.append(list(session))
    return made


@pytest.mark.parametrize("name", ["LRU", "GDSF", "S3FIFO"])
def test_a_cache_of_keys_has_what_an_arena_of_that_size_would_have(name: str) -> None:
    """Estimates and replay speak of the arena only as long as they do what it does."""
    slots = 40
    cache: KeyCache[int] = KeyCache(slots, policy_of(name))
    arena = Arena(slots, eviction=name, owned_percent=0)
    found = 0
    for now, chain in enumerate(chains(7, 800)):
        keys = [n.to_bytes(16, "big") for n in chain]
        hits = arena.run(keys)
        found += hits
        arena.use(keys[:hits])
        lease, _ = arena.lease(keys[:hits], now, 1e9)  # its own prefix, as a store keeps it
        more = []
        for parent, key in zip([b"", *keys], keys, strict=False):
            if key in keys[hits:]:
                slot = arena.reserve(1, now)
                if not slot:
                    break
                arena.commit(key, parent, slot[0], b"tag", foreign=False)
                more.append(arena.lease([key], now, 1e9)[0])
        arena.use(keys[hits:])
        for each in (lease, *more):
            arena.release(each)
        assert cache.request(chain) == hits, now
        assert (len(cache), cache.evicted) == (len(arena), arena.evicted)
    assert found > 2000 and arena.evicted > 500
