"""When a peer is a source and when it is left alone, under a clock of the test's own."""

import random

import pytest

from kvpool_agent.policy.breaker import (
    CLOSED,
    FAILURES,
    FIRST_PAUSE_SECONDS,
    HALF_OPEN,
    LEAST_RATE,
    LONGEST_PAUSE_SECONDS,
    OPEN,
    PROBE_SECONDS,
    Breaker,
)

MIB = float(2**20)


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES):
        breaker.failed(at)
    return breaker


def test_failures_in_a_row_open_it_and_a_success_between_them_does_not() -> None:
    breaker = Breaker()
    for _ in range(5):
        for _ in range(FAILURES - 1):
            breaker.failed(0.0)
        assert breaker.usable(0.0) and breaker.begin(0.0)
        breaker.succeeded(4096, 0.01, 0.0)
    assert (breaker.state(0.0), breaker.failures, breaker.opened) == (CLOSED, 0, 0)
    assert (opened().state(0.0), opened().failures, opened().opened) == (OPEN, FAILURES, 1)


def test_an_open_one_is_no_source_until_its_pause_is_over() -> None:
    breaker = opened(100.0)
    just_before = 100.0 + FIRST_PAUSE_SECONDS - 0.001
    assert not breaker.usable(just_before) and not breaker.begin(just_before)
    assert breaker.usable(100.0 + FIRST_PAUSE_SECONDS)


def test_half_open_tries_one_fetch_at_a_time() -> None:
    breaker = opened()
    now = FIRST_PAUSE_SECONDS
    assert [breaker.begin(now) for _ in range(3)] == [True, False, False]
    breaker.put_off()  # busy: the next one may try
    assert breaker.begin(now)
    assert breaker.begin(now + PROBE_SECONDS)  # that one never reported
    breaker.succeeded(4096, 0.01, now)
    assert breaker.state(now) == CLOSED
    assert breaker.begin(now) and breaker.begin(now)


def test_pauses_grow_to_a_bound_and_start_anew_after_a_success() -> None:
    breaker, now, pauses = opened(), 0.0, []
    for _ in range(8):
        until = now
        while not breaker.usable(until):
            until += 0.5
        pauses.append(until - now)
        now = until
        assert breaker.begin(now)
        breaker.failed(now)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, *[LONGEST_PAUSE_SECONDS] * 3]
    breaker.succeeded(4096, 0.01, now)
    for _ in range(FAILURES):
        breaker.failed(now)
    assert breaker.usable(now + FIRST_PAUSE_SECONDS)


def test_a_wait_for_nothing_until_the_deadline_opens_it_at_once() -> None:
    for size in (0.0, LEAST_RATE * 10 - 1):
        breaker = Breaker()
        breaker.late(int(size), 10.0, 0.0)
        assert (breaker.state(0.0), breaker.failures) == (OPEN, 1)


def test_a_deadline_that_was_too_short_says_nothing_of_a_good_peer() -> None:
    breaker = Breaker()
    for _ in range(10):
        breaker.late(int(100 * MIB), 1.0, 0.0)  # much came: much was asked
        breaker.late(0, 0.05, 0.0)  # no time at all
    assert (breaker.state(0.0), breaker.failures) == (CLOSED, 0)


def test_far_below_the_rate_it_has_shown_is_slow() -> None:
    breaker = Breaker()
    breaker.succeeded(int(100 * MIB), 1.0, 0.0)
    breaker.succeeded(int(11 * MIB), 1.0, 0.0)
    assert breaker.failures == 0
    crawling = Breaker()
    crawling.succeeded(int(100 * MIB), 1.0, 0.0)
    crawling.late(int(9 * MIB), 1.0, 0.0)
    assert crawling.state(0.0) == OPEN


def test_a_link_that_is_slower_for_good_becomes_the_measure() -> None:
    breaker, now = Breaker(), 0.0
    breaker.succeeded(int(1000 * MIB), 1.0, now)
    for _ in range(30):
        now += LONGEST_PAUSE_SECONDS
        breaker.succeeded(int(50 * MIB), 1.0, now)
    assert (breaker.state(now), breaker.failures) == (CLOSED, 0)


def test_a_small_quick_transfer_is_no_measure_of_the_rate() -> None:
    breaker = Breaker()
    breaker.succeeded(4096, 1e-5, 0.0)
    for _ in range(FAILURES):
        breaker.succeeded(4096, 0.3, 0.0)
    assert breaker.failures == 0


def test_an_answered_lookup_closes_what_silence_opened_and_nothing_else() -> None:
    silent = Breaker()
    for _ in range(FAILURES):
        silent.silent(0.0)
    silent.answered(0.0)  # to a question from before
    assert silent.state(0.0) == OPEN
    silent.answered(FIRST_PAUSE_SECONDS)
    assert silent.state(FIRST_PAUSE_SECONDS) == CLOSED
    broken = opened()
    broken.answered(FIRST_PAUSE_SECONDS)
    assert (broken.state(FIRST_PAUSE_SECONDS), broken.failures) == (HALF_OPEN, FAILURES)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_it_is_tried_again_within_the_longest_pause(seed: int) -> None:
    draw = random.Random(seed)
    breaker, now = Breaker(), 0.0
    for _ in range(500):
        now += draw.choice([0.0, 0.1, 1.0, 10.0])
        if breaker.begin(now):
            match draw.randrange(7):
                case 0:
                    breaker.put_off()
                case 1:
                    breaker.failed(now)
                case 2:
                    breaker.silent(now)
                case 3:
                    breaker.answered(now)
                case 4:
                    breaker.late(draw.choice([0, 10**9]), draw.choice([0.0, 1.0]), now)
                case 5:
                    breaker.succeeded(draw.choice([1, 10**9]), 1.0, now)
        assert breaker.usable(now + LONGEST_PAUSE_SECONDS)
        assert (breaker.state(now) == CLOSED) or breaker.failures > 0
