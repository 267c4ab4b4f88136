"""Quantiles of what was measured lately: within their error, in bounded memory, and old values fade."""

import random

from kvpool_agent.policy.sketch import ERROR, Sketch

KEEPS_ALL = 1e9  # observations, or seconds, after which one weighs half


def test_quantiles_are_within_their_error_of_the_exact_ones() -> None:
    chance = random.Random(5)
    values = [chance.lognormvariate(-6, 2) for _ in range(2000)]
    sketch = Sketch(KEEPS_ALL, KEEPS_ALL)
    for i, value in enumerate(values):
        sketch.add(value, float(i))
    exact = sorted(values)
    for part in (0.05, 0.5, 0.95, 1.0):
        found = sketch.quantile(part)
        rank = round(part * len(exact)) - 1  # the neighbours too: the last ones weigh a trifle more
        assert found is not None
        assert exact[rank - 1] * (1 - ERROR) <= found <= exact[min(rank + 1, len(exact) - 1)] * (1 + ERROR), part
    assert sketch.count == 2000


def test_nothing_is_known_of_nothing_and_zero_is_zero() -> None:
    sketch = Sketch()
    assert sketch.quantile(0.5) is None
    sketch.add(0.0, 1.0)
    assert sketch.quantile(0.5) == 0.0


def test_after_a_change_the_new_values_are_the_ones_that_count() -> None:
    sketch = Sketch()
    for i in range(1000):
        sketch.add(1.0, i * 0.001)
    for i in range(40):
        sketch.add(0.01, 1.0 + i * 0.001)
    assert (sketch.quantile(0.5) or 1) < 0.011
    assert (sketch.quantile(0.95) or 0) > 0.9  # some of the old ones are left
    for i in range(60):
        sketch.add(0.01, 1.1 + i * 0.001)
    assert (sketch.quantile(0.95) or 1) < 0.011


def test_one_slow_one_among_many_is_beyond_the_95th_percentile() -> None:
    sketch = Sketch()
    for i in range(100):
        sketch.add(0.01, i * 0.001)
    sketch.add(1.0, 0.2)
    assert (sketch.quantile(0.95) or 1) < 0.011


def test_memory_is_bounded_however_much_is_measured() -> None:
    sketch, chance = Sketch(), random.Random(1)
    for i in range(20_000):
        sketch.add(10 ** chance.uniform(-12, 18), i * 10.0)
    assert len(sketch._weights) < 1400
    assert max(sketch._weights.values()) < 2.0**60
