"""What one member may take of another one's peer port, and that the rest is left for others."""

import threading
from collections.abc import Iterator

import pytest

from kvpool_agent.account import Account
from kvpool_agent.peer import shares
from kvpool_agent.peer.bounds import Gate
from kvpool_agent.peer.shares import ANSWERED, CONNECTIONS, HANDSHAKES, NEW_AT_ONCE, NEW_PER_SECOND, Shares


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def account() -> Account:
    return Account()


@pytest.fixture
def made(account: Account) -> Iterator[tuple[Shares, Clock]]:
    clock = Clock()
    yield Shares(account.count, clock), clock


def test_an_address_has_so_many_handshakes_at_a_time_and_others_have_theirs(
    made: tuple[Shares, Clock], account: Account
) -> None:
    bounds, _ = made
    assert [bounds.begins("a") for _ in range(HANDSHAKES + 2)] == [True] * HANDSHAKES + [False] * 2
    assert bounds.begins("b")
    assert account.counters == {"bound_address_handshakes": 2}
    bounds.greeted("a")
    assert bounds.begins("a")


def test_an_address_opens_so_many_connections_a_second(made: tuple[Shares, Clock], account: Account) -> None:
    bounds, clock = made

    def opens(address: str) -> bool:
        found = bounds.begins(address)
        if found:
            bounds.greeted(address)
        return found

    assert sum(opens("a") for _ in range(NEW_AT_ONCE + 10)) == NEW_AT_ONCE
    assert opens("b")
    assert account.counters == {"bound_address_rate": 10}
    clock.now += 1
    assert sum(opens("a") for _ in range(NEW_AT_ONCE)) == NEW_PER_SECOND


def test_what_is_remembered_of_addresses_is_bounded(
    made: tuple[Shares, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "MAX_ADDRESSES", 3)
    bounds, _ = made
    for number in range(50):
        assert bounds.begins(f"10.0.0.{number}")
        bounds.greeted(f"10.0.0.{number}")
    assert (len(bounds._new), len(bounds._greeting)) == (3, 0)


def test_a_member_has_so_many_connections_and_gets_them_back(made: tuple[Shares, Clock], account: Account) -> None:
    bounds, _ = made
    held = [bounds.connected("m") for _ in range(CONNECTIONS)]
    assert all(one.__enter__() for one in held)
    with bounds.connected("m") as found, bounds.connected("other") as others:
        assert (found, others) == (False, True)
    assert account.counters == {"bound_member_connections": 1}
    for one in held:
        one.__exit__(None, None, None)
    with bounds.connected("m") as found:
        assert found
    assert not bounds._connected


def test_a_members_requests_wait_for_its_own_and_for_nobody_elses(
    made: tuple[Shares, Clock], account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "TURN_SECONDS", 0.05)
    bounds, _ = made
    held = [bounds.turn("m") for _ in range(ANSWERED)]
    assert all(one.__enter__() for one in held)
    with bounds.turn("m") as late, bounds.turn("other") as others:
        assert (late, others) == (False, True)
    assert account.counters == {"bound_member_requests": 1}
    monkeypatch.setattr(shares, "TURN_SECONDS", 20.0)
    answered = threading.Event()

    def waits() -> None:
        with bounds.turn("m") as found:
            assert found
            answered.set()

    waiting = threading.Thread(target=waits)
    waiting.start()
    held.pop().__exit__(None, None, None)
    waiting.join(20)
    assert answered.is_set()
    for one in held:
        one.__exit__(None, None, None)
    assert not bounds._answering


def test_the_last_stream_is_for_a_member_that_has_none(account: Account) -> None:
    gate = Gate("x", account.count)
    held = [gate.entered(0, "greedy", streams=4, room=0) for _ in range(3)]
    assert all(one.__enter__() for one in held)
    with gate.entered(0, "greedy", streams=4, room=0) as fourth, gate.entered(0, "other", streams=4, room=0) as theirs:
        assert (fourth, theirs) == (False, True)
    for one in held:
        one.__exit__(None, None, None)
    with gate.entered(0, "greedy", streams=1, room=0) as alone:  # of a single stream nothing can be kept for others
        assert alone
    assert not gate._held and account.counters == {"bound_x_streams": 1}
