"""What is hot, what is warmed, how fast: pure rules under a clock and chance of the test's own."""

import random

import pytest

from kvpool_agent.policy.bandwidth import TokenBucket
from kvpool_agent.policy.heat import HALF_LIFE_SECONDS, HeatTable, HotBlock
from kvpool_agent.policy.warmup import plan_warmup, share_out


def key(n: int) -> bytes:
    return n.to_bytes(16, "big")


def chain(*numbers: int) -> list[bytes]:
    return [key(n) for n in numbers]


class TestHeat:
    """Requests are counted, age, and put parents before children."""

    def test_each_request_counts_every_block_of_its_chain_once(self) -> None:
        heat = HeatTable(10_000)
        heat.count(chain(1, 2), 0.0)
        heat.count(chain(1, 3), 0.0)
        found = heat.hottest(chain(1, 2, 3, 4), 0.0, 10)
        assert found == [
            HotBlock(key(1), b"", 0, 2.0),
            HotBlock(key(2), key(1), 1, 1.0),
            HotBlock(key(3), key(1), 1, 1.0),
        ]
        assert len(heat) == 3

    def test_heat_halves_in_an_hour(self) -> None:
        heat = HeatTable(10_000)
        heat.count(chain(1), 100.0)
        heat.count(chain(2), 100.0 + HALF_LIFE_SECONDS)
        first, second = heat.hottest(chain(1, 2), 100.0 + 2 * HALF_LIFE_SECONDS, 2)
        assert (first.key, second.key) == (key(2), key(1))
        assert (first.heat, second.heat) == pytest.approx((0.5, 0.25))

    def test_what_another_member_counted_adds_up_and_ages_alike(self) -> None:
        heat = HeatTable(10_000)
        heat.count(chain(1), 100.0)
        heat.inherit([HotBlock(key(1), b"", 0, 2.0), HotBlock(key(2), key(1), 1, 2.0)], 100.0 + HALF_LIFE_SECONDS)
        later = 100.0 + 2 * HALF_LIFE_SECONDS
        assert [heat.of(each, later) for each in chain(1, 2, 3)] == pytest.approx([1.25, 1.0, 0.0])
        assert heat.hottest(chain(1, 2), later, 2)[1] == HotBlock(key(2), key(1), 1, pytest.approx(1.0))

    def test_the_hottest_n_are_closed_under_prefixes_whatever_was_asked(self) -> None:
        draw = random.Random(5)
        heat = HeatTable(10_000)
        for step in range(300):
            at, numbers = 0, []
            for _ in range(draw.randint(1, 8)):
                at = at * 3 + draw.randint(1, 3)
                numbers.append(at)
            heat.count(chain(*numbers), step * 60.0)
        held = list(heat._entries)
        for limit in range(1, len(held), 7):
            found = heat.hottest(held, 300 * 60.0, limit)
            seen: set[bytes] = set()
            for block in found:
                assert not block.parent or block.parent in seen
                seen.add(block.key)

    def test_only_held_blocks_are_listed_and_the_limit_holds(self) -> None:
        heat = HeatTable(10_000)
        heat.count(chain(1, 2, 3), 0.0)
        assert [b.key for b in heat.hottest(chain(1, 3), 0.0, 10)] == chain(1, 3)
        assert len(heat.hottest(chain(1, 2, 3), 0.0, 2)) == 2

    def test_above_its_limit_the_coldest_are_forgotten(self) -> None:
        heat = HeatTable(limit=100)
        heat.count(chain(*range(1, 51)), 0.0)
        heat.count(chain(*range(1, 51)), 0.0)
        heat.count(chain(*range(1001, 1052)), 0.0)
        assert len(heat) == 90
        assert len(heat.hottest(chain(*range(1, 51)), 0.0, 1000)) == 50

    def test_years_without_a_restart_stay_within_the_range_of_a_float(self) -> None:
        heat = HeatTable(10_000)
        for year in range(5):
            heat.count(chain(1, 2), year * 365 * 86400.0)
        (first, second) = heat.hottest(chain(1, 2), 4 * 365 * 86400.0, 2)
        assert first.heat == second.heat == pytest.approx(1.0)


class TestWarmupPlan:
    """Lists are merged, cut to the budget, in an order that is safe to stop anywhere."""

    def test_heats_of_equal_keys_add_up_and_all_holders_are_known(self) -> None:
        lists = {
            "a": [HotBlock(key(1), b"", 0, 3.0), HotBlock(key(2), key(1), 1, 1.0)],
            "b": [HotBlock(key(1), b"", 0, 2.0), HotBlock(key(9), b"", 0, 4.0)],
        }
        plan = plan_warmup(lists, 10, random.Random(1))
        assert [(b.key, b.heat, b.holders) for b in plan] == [
            (key(1), 5.0, ("a", "b")),
            (key(9), 4.0, ("b",)),
            (key(2), 1.0, ("a",)),
        ]

    @pytest.mark.parametrize("budget", [0, 1, 2, 3, 100])
    def test_the_budget_holds(self, budget: int) -> None:
        lists = {"a": [HotBlock(key(n), b"", 0, float(n)) for n in range(1, 5)]}
        plan = plan_warmup(lists, budget, random.Random(1))
        assert [b.key for b in plan] == chain(4, 3, 2, 1)[:budget]

    def test_parents_come_before_children_also_where_a_list_was_cut(self) -> None:
        lists = {
            "a": [HotBlock(key(1), b"", 0, 1.0)],
            "b": [HotBlock(key(3), key(2), 2, 5.0), HotBlock(key(2), key(1), 1, 4.0)],
        }
        for seed in range(20):
            plan = plan_warmup(lists, 10, random.Random(seed))
            assert [b.key for b in plan] == chain(1, 2, 3)

    def test_every_prefix_of_a_random_plan_is_closed_under_prefixes(self) -> None:
        draw = random.Random(11)
        lists: dict[str, list[HotBlock]] = {}
        for member in "abc":
            heat = HeatTable(10_000)
            for _ in range(40):
                at, numbers = 0, []
                for _ in range(draw.randint(1, 6)):
                    at = at * 3 + draw.randint(1, 3)
                    numbers.append(at)
                heat.count(chain(*numbers), draw.random() * 7200)
            lists[member] = heat.hottest(list(heat._entries), 7200.0, draw.randint(5, 1000))
        plan = plan_warmup(lists, 1000, draw)
        seen: set[bytes] = set()
        for block in plan:
            assert not block.parent or block.parent in seen
            seen.add(block.key)

    def test_blocks_of_equal_heat_are_shuffled_so_that_newcomers_begin_apart(self) -> None:
        lists = {"a": [HotBlock(key(n), b"", 0, 1.0) for n in range(20)]}
        orders = {tuple(b.key for b in plan_warmup(lists, 20, random.Random(seed))) for seed in range(10)}
        assert len(orders) == 10
        assert all(set(order) == set(chain(*range(20))) for order in orders)

    def test_batches_keep_the_order_fit_their_size_and_ask_holders_only(self) -> None:
        lists = {
            "a": [HotBlock(key(n), b"", 0, 1.0) for n in range(0, 20)],
            "b": [HotBlock(key(n), b"", 0, 1.0) for n in range(10, 30)],
        }
        plan = plan_warmup(lists, 100, random.Random(3))
        batches = share_out(plan, 4, random.Random(3))
        place = {block.key: i for i, block in enumerate(plan)}
        assert sorted(place[b.key] for _, blocks in batches for b in blocks) == list(range(30))
        assert {holder for holder, _ in batches} == {"a", "b"}
        for holder, blocks in batches:
            assert 1 <= len(blocks) <= 4
            assert all(holder in block.holders for block in blocks)
            assert [place[b.key] for b in blocks] == sorted(place[b.key] for b in blocks)


class TestTokenBucket:
    """From its start on, no interval sees more than the rate allows."""

    @pytest.mark.parametrize("seed", range(5))
    def test_bytes_taken_since_the_start_never_exceed_the_rate(self, seed: int) -> None:
        draw = random.Random(seed)
        rate, block = draw.choice([100.0, 1e6]), 64
        bucket = TokenBucket(rate, block, now=5.0)
        now, sent = 5.0, 0
        for _ in range(500):
            amount = draw.choice([block, 4 * block])
            now += bucket.take(amount, now)
            sent += amount
            assert sent <= rate * (now - 5.0) * (1 + 1e-9)
            now += draw.choice([0.0, 0.0, draw.random() / 10])

    def test_several_takers_at_one_moment_wait_in_turn(self) -> None:
        bucket = TokenBucket(100.0, 10, now=0.0)
        assert [bucket.take(50, 0.0) for _ in range(3)] == pytest.approx([0.5, 1.0, 1.5])

    def test_idle_time_saves_up_a_tenth_of_a_second_or_one_block(self) -> None:
        bucket = TokenBucket(100.0, 1, now=0.0)
        assert bucket.take(20, 1000.0) == pytest.approx(0.1)
        large = TokenBucket(100.0, 50, now=0.0)
        assert large.take(50, 1000.0) == 0.0
        assert large.take(50, 1000.0) == pytest.approx(0.5)
