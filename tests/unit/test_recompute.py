"""What computing costs: the fit finds the law it was measured by, and says nothing of what it can't know."""

import random

import pytest

from kvpool_agent.policy.recompute import Recompute

START, LINEAR, PAIRS = 0.02, 1e-4, 2e-9


def law(held: int, tokens: int) -> float:
    n = tokens - held
    return START + LINEAR * n + PAIRS * n * (held + n / 2)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_the_cost_of_tokens_by_length_and_depth_is_found_again(noise: float) -> None:
    costs, chance = Recompute(), random.Random(3)
    for i in range(300):
        tokens = chance.randrange(100, 60_000)
        held = chance.choice((0, 0, chance.randrange(0, tokens)))
        costs.measured(held, tokens, law(held, tokens) * chance.uniform(1 - noise, 1 + noise), i * 1.0)
    for start, end in ((0, 1024), (0, 32_768), (32_768, 34_816), (1000, 60_000)):
        found, true = costs.seconds(start, end), law(start, end) - START
        assert found is not None
        assert abs(found / true - 1) < (0.05 if not noise else 0.2), (start, end, found, true)


def test_prompts_of_one_length_give_a_cost_for_each_token() -> None:
    costs = Recompute()
    for i in range(10):
        costs.measured(0, 1000, 0.5, i * 1.0)
    assert costs.seconds(0, 1000) == pytest.approx(0.5, rel=0.03)
    assert costs.seconds(0, 500) == pytest.approx(0.25, rel=0.03)


def test_an_engine_that_slows_down_is_seen() -> None:
    costs, chance = Recompute(), random.Random(4)
    for factor in (1.0, 3.0):
        for i in range(400):
            tokens = chance.randrange(100, 8000)
            costs.measured(0, tokens, factor * law(0, tokens), i * 1.0)
    assert costs.seconds(0, 4000) == pytest.approx(3 * (law(0, 4000) - START), rel=0.1)


def test_of_nothing_and_of_one_request_nothing_is_known_and_nonsense_is_not_counted() -> None:
    costs = Recompute()
    assert costs.seconds(0, 100) is None
    costs.measured(0, 0, 1.0, 0.0)
    costs.measured(10, 10, 1.0, 0.0)
    costs.measured(0, 10, 0.0, 0.0)
    assert costs.count == 0
    costs.measured(0, 1000, 1.0, 0.0)
    assert costs.seconds(0, 100) is None
    costs.measured(0, 1000, 1.0, 0.0)
    assert costs.seconds(0, 100) == pytest.approx(0.1, rel=0.03)


def test_no_cost_is_negative_whatever_is_measured() -> None:
    costs, chance = Recompute(), random.Random(6)
    for i in range(500):
        tokens = chance.randrange(1, 100_000)
        costs.measured(chance.randrange(tokens), tokens, 10 ** chance.uniform(-5, 2), i * 1.0)
        assert min(costs.fit) >= 0
