"""Addresses that others tell: candidates within bounds, given up when nobody answers there."""

import pytest

from kvpool_agent.directory.learnt import (
    FIRST_SECONDS,
    GONE_SECONDS,
    MAX_CANDIDATES,
    MAX_REFUSED,
    REFUSED_SECONDS,
    Learnt,
    may_be_a_member,
)

HERE = "10.0.0.1:7700"


def test_an_address_that_never_answers_is_given_up_and_not_taken_again_for_a_while() -> None:
    learnt = Learnt()
    learnt.hear([HERE], 0.0)
    assert learnt.addresses(FIRST_SECONDS - 0.1) == [HERE]
    learnt.hear([HERE], FIRST_SECONDS - 0.1)  # told again and again: no more time for that
    assert learnt.addresses(FIRST_SECONDS) == []
    learnt.hear([HERE], FIRST_SECONDS + REFUSED_SECONDS - 0.1)
    assert learnt.addresses(FIRST_SECONDS + REFUSED_SECONDS - 0.1) == []
    learnt.hear([HERE], FIRST_SECONDS + REFUSED_SECONDS)
    assert learnt.addresses(FIRST_SECONDS + REFUSED_SECONDS) == [HERE]


def test_a_member_that_answers_stays_and_goes_when_it_has_been_silent_for_a_while() -> None:
    learnt = Learnt()
    learnt.hear([HERE], 0.0)
    learnt.live(HERE, 5.0)
    assert learnt.addresses(5.0 + GONE_SECONDS - 0.1) == [HERE]
    assert learnt.addresses(5.0 + GONE_SECONDS) == []


def test_a_flood_is_bounded_and_forgotten() -> None:
    learnt = Learnt()
    for flood in range(20):
        now = flood * FIRST_SECONDS
        learnt.addresses(now)
        learnt.hear([f"10.1.{flood}.{n}:1" for n in range(250)], now)
        assert len(learnt.addresses(now)) == MAX_CANDIDATES
    assert learnt.addresses(1000.0) == []
    assert len(learnt._refused) <= MAX_REFUSED


@pytest.mark.parametrize("text", [HERE, "[fd00::1]:7700", "127.0.0.1:1", "127.0.0.1:65535"])
def test_addresses_are_numbers_of_either_family(text: str) -> None:
    assert may_be_a_member(text)


@pytest.mark.parametrize(
    "text", ["", "a.name:7700", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:-1", "1:2:3", ":1"]
)
def test_names_and_nonsense_are_not_dialled(text: str) -> None:
    learnt = Learnt()
    learnt.hear([text], 0.0)
    assert not may_be_a_member(text) and learnt.addresses(0.0) == []


@pytest.mark.parametrize("text", [HERE, "[fd00::1]:7700", "[::ffff:10.0.0.1]:7700", "100.64.0.1:7700"])
def test_pods_are_dialled_at_the_port_of_pods(text: str) -> None:
    learnt = Learnt(7700)
    learnt.hear([text], 0.0)
    assert learnt.addresses(0.0) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.1:80", "[fd00::1]:443", "127.0.0.1:7700", "[::1]:7700", "[::ffff:127.0.0.1]:7700", "0.0.0.0:7700",
        "[::]:7700", "169.254.169.254:7700", "[fe80::1]:7700", "[fe80::1%eth0]:7700", "[::ffff:169.254.169.254]:7700",
        "224.0.0.1:7700", "[ff02::1]:7700", "a.name:7700",
    ],
)  # fmt: skip
def test_what_is_no_place_of_a_pod_is_not_dialled_whoever_tells_it(text: str) -> None:
    learnt = Learnt(7700)
    learnt.hear([text], 0.0)
    assert learnt.addresses(0.0) == []
