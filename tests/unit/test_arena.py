"""The arena: least recently used leaves go first, leased blocks never, and no slot is lost or used twice."""

import itertools
import random
import threading
from collections.abc import Sequence

import pytest

from kvpool_agent.store.arena import Arena
from kvpool_agent.store.feed import Change, Feed


def key(n: int) -> bytes:
    return n.to_bytes(16, "big")


def put(arena: Arena, *chain: int, foreign: bool = False, now: float = 0.0) -> list[bool]:
    """Stores a chain from its root; whether each was new."""
    new, parent = [], b""
    for n in chain:
        (slot,) = arena.reserve(1, now)
        new.append(arena.commit(key(n), parent, slot, b"tag%d" % n, foreign=foreign))
        parent = key(n)
    return new


def assert_every_slot_is_accounted_for(arena: Arena, reserved: Sequence[int]) -> None:
    """Frees what no lease holds: no slot is lost, none is given twice."""
    for key_here in arena.keys():  # noqa: SIM118
        arena.drop(key_here)
    arena.renew(0, 1e9, 0.0)  # of no lease: all that are over end
    assert sorted([*arena.reserve(arena.slot_count, 1e9), *reserved]) == list(range(arena.slot_count))


def held(arena: Arena, *numbers: int) -> list[int]:
    return [n for n, here in zip(numbers, arena.held([key(n) for n in numbers]), strict=True) if here]


def test_a_committed_block_is_found_with_its_slot_tag_and_parent() -> None:
    arena = Arena(4)
    put(arena, 1, 2)
    _, (first, second, third) = arena.lease([key(1), key(2), key(3)], 0.0, 1.0)
    assert (first.parent, first.tag, second.parent, third) == (b"", b"tag1", key(1), None)
    assert first.slot != second.slot
    assert (len(arena), arena.used_slots, arena.run([key(1), key(2), key(3)]), arena.run([key(3), key(1)])) == (
        2,
        2,
        2,
        0,
    )


def test_the_least_recently_used_leaf_goes_first_and_never_a_parent_before_its_child() -> None:
    arena = Arena(4)
    put(arena, 1, 2)
    put(arena, 3, 4)
    arena.release(arena.lease([key(1), key(2)], 0.0, 1.0)[0])  # the first chain is the fresher one now
    put(arena, 5)
    assert held(arena, 1, 2, 3, 4, 5) == [1, 2, 3, 5]
    put(arena, 6)
    assert held(arena, 1, 2, 3, 5, 6) == [1, 2, 5, 6]
    assert arena.evicted == 2


def test_a_leased_block_stays_until_its_time_is_over_or_it_is_released() -> None:
    arena = Arena(2)
    put(arena, 1)
    put(arena, 2)
    lease, _ = arena.lease([key(1)], 0.0, 10.0)
    arena.lease([key(2)], 0.0, 5.0)
    assert arena.reserve(2, 4.9) == []
    (slot,) = arena.reserve(2, 5.0)
    assert held(arena, 1, 2) == [1]
    arena.give_back([slot])
    assert arena.renew(lease, 9.0, 10.0)
    assert len(arena.reserve(2, 18.0)) == 1
    arena.release(lease)
    assert len(arena.reserve(2, 18.0)) == 1
    assert not arena.renew(lease, 18.0, 1.0)


def test_a_block_under_two_leases_stays_for_the_longer_one() -> None:
    arena = Arena(1)
    put(arena, 1)
    first, _ = arena.lease([key(1)], 0.0, 10.0)
    arena.lease([key(1)], 0.0, 20.0)
    arena.release(first)
    arena.release(first)  # twice is once
    assert arena.reserve(1, 19.9) == []
    assert arena.reserve(1, 20.0) == [0]


@pytest.mark.parametrize("policy", ["GDSF", "LRU", "S3FIFO"])
def test_what_may_not_make_room_stays_and_colder_blocks_behind_it_go(policy: str) -> None:
    arena = Arena(6, eviction=policy)
    for n in range(6):
        put(arena, n)
    hot = {key(0), key(1), key(3)}
    slots = arena.reserve(6, 0.0, lambda one: one not in hot)
    assert held(arena, *range(6)) == [0, 1, 3]
    assert len(slots) == 3
    arena.give_back(slots)
    assert len(arena.reserve(6, 0.0)) == 6  # without that rule all make room


def test_an_adopted_block_makes_room_as_owned_ones_do_and_counts_as_computed_elsewhere() -> None:
    arena = Arena(4, owned_percent=50)
    put(arena, 1, foreign=True)
    put(arena, 2, foreign=True)
    arena.adopt([key(1), key(7)])
    arena.adopt([key(1)])
    put(arena, 3)
    put(arena, 4)
    put(arena, 5, foreign=True)  # owned ones have borrowed: the one used for the fewest requests goes
    assert (held(arena, 1, 2, 3, 4, 5), arena.foreign) == ([1, 2, 4, 5], 3)
    put(arena, 6)  # none has borrowed: replica copies go first
    assert held(arena, 1, 2, 4, 5, 6) == [1, 4, 5, 6]


def test_reserve_gives_fewer_slots_when_the_rest_is_leased() -> None:
    arena = Arena(4)
    put(arena, 1, 2, 3, 4)
    arena.lease([key(1), key(2)], 0.0, 10.0)
    assert len(arena.reserve(4, 1.0)) == 2
    assert held(arena, 1, 2, 3, 4) == [1, 2]


def test_a_parent_stays_while_its_child_is_leased() -> None:
    arena = Arena(2)
    put(arena, 1, 2)
    arena.lease([key(2)], 0.0, 10.0)
    assert arena.reserve(1, 1.0) == []


def test_a_block_committed_twice_is_one_and_its_second_slot_is_free_again() -> None:
    arena = Arena(3)
    assert put(arena, 1) == [True]
    assert put(arena, 1) == [False]
    assert (len(arena), arena.used_slots) == (1, 1)
    assert len(arena.reserve(2, 0.0)) == 2


def test_a_block_whose_parent_is_not_here_is_a_leaf_like_any_other() -> None:
    arena = Arena(2)
    (slot,) = arena.reserve(1, 0.0)
    arena.commit(key(2), key(1), slot, b"", foreign=True)
    put(arena, 1)  # the parent comes later and finds its child here
    put(arena, 3)
    assert held(arena, 1, 2, 3) == [1, 3]
    put(arena, 4)
    assert held(arena, 1, 3, 4) == [3, 4]


def test_a_dropped_block_is_gone_at_once_and_a_leased_one_keeps_its_slot_until_its_leases_end() -> None:
    arena = Arena(2)
    put(arena, 1)
    arena.drop(key(1))
    assert (held(arena, 1), arena.used_slots) == ([], 0)
    put(arena, 2)
    lease, (before,) = arena.lease([key(2)], 0.0, 10.0)
    arena.drop(key(2))
    assert (held(arena, 2), arena.used_slots) == ([], 1)
    # stored again while the old bytes may still be read: another slot
    put(arena, 2)
    other, (after,) = arena.lease([key(2)], 0.0, 10.0)
    assert (before.slot != after.slot, arena.used_slots) == (True, 2)
    arena.release(lease)
    assert arena.used_slots == 1
    assert arena.reserve(2, 1.0) == [before.slot]  # the new block is leased still
    arena.release(other)
    arena.drop(key(9))  # unknown: nothing


def test_blocks_from_elsewhere_are_counted_while_they_are_here() -> None:
    arena = Arena(3)
    put(arena, 1, 2, foreign=True)
    put(arena, 3)
    assert arena.foreign == 2
    arena.drop(key(2))
    assert arena.foreign == 1
    arena.reserve(3, 0.0)
    assert (arena.foreign, len(arena)) == (0, 0)


class Naive:
    """The same rules, written down without any cleverness: lists, and a scan for each victim."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.blocks: dict[int, tuple[int, int]] = {}  # number: (parent, last use)
        self.leases: dict[int, tuple[list[int], float]] = {}
        self.numbers = itertools.count()
        self.reserved = self.clock = self.evicted = 0

    def use(self, n: int) -> int:
        self.clock += 1
        return self.clock

    def expire(self, now: float) -> None:
        for number in [n for n, (_, end) in self.leases.items() if end <= now]:
            del self.leases[number]

    def leased(self, n: int) -> bool:
        return any(n in numbers for numbers, _ in self.leases.values())

    def reserve(self, count: int, now: float) -> int:
        self.expire(now)
        got = 0
        while got < count:
            if len(self.blocks) + self.reserved >= self.slots:
                parents = {parent for parent, _ in self.blocks.values()}
                leaves = [n for n in self.blocks if n not in parents and not self.leased(n)]
                if not leaves:
                    break
                del self.blocks[min(leaves, key=lambda n: self.blocks[n][1])]
                self.evicted += 1
            self.reserved += 1
            got += 1
        return got

    def commit(self, n: int, parent: int) -> bool:
        self.reserved -= 1
        if n in self.blocks:
            return False
        self.blocks[n] = (parent, self.use(n))
        return True

    def lease(self, numbers: Sequence[int], now: float, seconds: float) -> list[bool]:
        self.expire(now)
        found = [n in self.blocks for n in numbers]
        for n, here in zip(numbers, found, strict=True):
            if here:
                self.blocks[n] = (self.blocks[n][0], self.use(n))
        kept = [n for n, here in zip(numbers, found, strict=True) if here]
        self.leases[next(self.numbers)] = (kept, now + seconds)
        return found


@pytest.mark.parametrize("seed", range(12))
def test_a_random_history_agrees_with_a_naive_arena(seed: int) -> None:
    draw = random.Random(seed)
    slots = draw.randint(4, 24)
    arena, naive = Arena(slots, eviction="LRU", owned_percent=0), Naive(slots)
    # a forest of chains: block n's parent is fixed, 0 is none
    parents = {n: draw.choice([0, *range(max(1, n - 3), n)]) for n in range(1, 60)}
    reserved: list[int] = []
    now = 0.0
    for _ in range(1500):
        now += draw.random()
        match draw.randrange(4):
            case 0 | 1:
                if len(reserved) < slots // 2:
                    count = draw.randint(1, 3)
                    slots_given = arena.reserve(count, now)
                    assert len(slots_given) == naive.reserve(count, now)
                    reserved += slots_given
                if reserved:
                    n = draw.randrange(1, 60)
                    parent = key(parents[n]) if parents[n] else b""
                    assert arena.commit(key(n), parent, reserved.pop(), b"", foreign=False) == naive.commit(
                        n, parents[n]
                    )
            case 2:
                numbers = draw.sample(range(1, 60), draw.randint(1, 6))
                seconds = draw.choice([0.5, 3.0, 8.0])
                _, found = arena.lease([key(n) for n in numbers], now, seconds)
                assert [f is not None for f in found] == naive.lease(numbers, now, seconds)
            case 3:
                if reserved:
                    arena.give_back([reserved.pop()])
                    naive.reserved -= 1
        assert held(arena, *range(1, 60)) == sorted(naive.blocks)
        assert arena.used_slots == len(naive.blocks) + naive.reserved
        assert arena.evicted == naive.evicted
    assert_every_slot_is_accounted_for(arena, reserved)


def test_threads_leave_every_slot_accounted_for() -> None:
    arena = Arena(32)

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(300):
            n = draw.randrange(100)
            taken = arena.reserve(1, 0.0)
            if taken and not arena.commit(key(n), b"", taken[0], b"", foreign=False):
                arena.drop(key(draw.randrange(100)))
            lease, _ = arena.lease([key(draw.randrange(100)) for _ in range(3)], 0.0, 60.0)
            arena.release(lease)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_every_slot_is_accounted_for(arena, [])


def orphan(arena: Arena, n: int, parent: int) -> None:
    (slot,) = arena.reserve(1, 0.0)
    arena.commit(key(n), key(parent), slot, b"tag", foreign=False)


def test_a_block_whose_parent_nobody_holds_goes_first_and_with_it_what_hangs_below() -> None:
    arena = Arena(6)
    put(arena, 1, 2)
    orphan(arena, 10, 99)
    orphan(arena, 11, 10)
    orphan(arena, 12, 11)
    put(arena, 3)
    assert (arena.orphans(), arena.orphan_blocks) == ([(key(10), key(99))], 0)
    arena.judge_orphan(key(10), held_elsewhere=True)
    arena.judge_orphan(key(2), held_elsewhere=False)  # no orphan: nothing to judge
    assert arena.orphan_blocks == 0
    arena.judge_orphan(key(10), held_elsewhere=False)
    assert arena.orphan_blocks == 1
    for left in ([1, 2, 3, 11, 12], [1, 2, 3, 12], [1, 2, 3], [1, 3]):  # the oldest leaf among the others last
        put(arena, 20 + len(left))
        arena.lease([key(20 + len(left))], 0.0, 100.0)
        assert held(arena, 1, 2, 3, 10, 11, 12) == left
    assert (arena.orphan_blocks, arena.evicted) == (0, 4)


def test_a_leased_orphan_stays_and_one_whose_parent_comes_is_none_any_more() -> None:
    arena = Arena(4)
    orphan(arena, 10, 9)
    orphan(arena, 12, 99)
    for n in (10, 12):
        arena.judge_orphan(key(n), held_elsewhere=False)
    arena.lease([key(12)], 0.0, 100.0)
    assert arena.orphan_blocks == 2
    put(arena, 9)
    assert (arena.orphan_blocks, arena.orphans()) == (1, [(key(12), key(99))])
    put(arena, 5)
    put(arena, 6)
    assert held(arena, 5, 6, 9, 10, 12) == [5, 6, 9, 12]  # the oldest leaf went, the leased orphan did not


def test_a_dropped_parent_makes_orphans_of_its_children() -> None:
    arena = Arena(4)
    put(arena, 1, 2, 3)
    arena.drop(key(1))
    assert arena.orphans() == [(key(2), key(1))]
    put(arena, 1)
    assert arena.orphans() == []


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_block_that_would_hang_below_itself_is_not_taken_since_nothing_could_make_it_go(length: int) -> None:
    arena = Arena(3)
    slots = arena.reserve(length, 0.0)
    taken = [arena.commit(key(n), key((n + 1) % length), slots[n], b"", foreign=True) for n in range(length)]
    assert taken == [*[True] * (length - 1), False]
    assert len(arena.reserve(3, 0.0)) == 3


def chain_of(length: int) -> list[int]:
    return list(range(1, length + 1))


def test_the_group_of_a_block_follows_from_its_parents_in_any_order_of_arrival() -> None:
    numbers = chain_of(70)
    expected = {n: next(start for start in (65, 33, 17, 1) if n >= start) for n in numbers}
    for seed in range(5):
        arena, order = Arena(70), list(numbers)
        random.Random(seed).shuffle(order)
        for n in order:
            (slot,) = arena.reserve(1, 0.0)
            arena.commit(key(n), key(n - 1) if n > 1 else b"", slot, b"tag", foreign=False)
        assert dict(arena.placed()) == {key(n): key(head) for n, head in expected.items()}
        changes, lost = arena.changes()
        assert not lost
        assert sorted((c.key, c.head, c.held) for c in changes) == sorted((*p, True) for p in arena.placed())


def test_a_block_without_its_parent_gets_its_place_from_a_whole_chain() -> None:
    arena = Arena(8)
    for n in (19, 20, 21):
        orphan(arena, n, n - 1)
    assert (arena.placed(), arena.changes()) == ([], ([], False))
    arena.place([key(n) for n in chain_of(20)])
    assert dict(arena.placed()) == {key(n): key(17) for n in (19, 20, 21)}
    assert [(c.key, c.head, c.held) for c in arena.changes()[0]] == [(key(n), key(17), True) for n in (19, 20, 21)]
    arena.place([key(n) for n in chain_of(20)])
    assert arena.changes() == ([], False)  # known already
    arena.drop(key(20))
    assert [(c.key, c.head, c.held) for c in arena.changes()[0]] == [(key(20), key(17), False)]


def test_changes_beyond_the_bound_are_lost_and_that_is_told() -> None:
    feed = Feed(limit=3)
    for n in range(3):
        feed.add(Change(key(n), key(n), held=True))
    assert feed.take() == ([Change(key(n), key(n), held=True) for n in range(3)], False)
    for n in range(4):
        feed.add(Change(key(n), key(n), held=True))
    assert feed.take() == ([Change(key(3), key(3), held=True)], True)
    assert feed.take() == ([], False)
