"""The entries of a home: hints under leases, in bounded memory, of which nobody can push out more than its own."""

import random
import threading

import pytest

from kvpool_agent.account import Account
from kvpool_agent.directory import entries as entries_module
from kvpool_agent.directory.entries import LEASE_SECONDS, SHARES, Entries
from kvpool_agent.peer.frames import MAX_HOLDERS

A, B = ("uid-a", "1"), ("uid-b", "1")
HEAD = b"h" * 16


def key(n: int) -> bytes:
    return n.to_bytes(16, "big")


def keys(*numbers: int) -> list[bytes]:
    return [key(n) for n in numbers]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def made(clock: Clock, limit: int = 1000) -> tuple[Entries, Account]:
    account = Account()
    return Entries(account, limit, clock), account


def told(entries: Entries, holder: tuple[str, str], *numbers: int, fresh: bool = False, head: bytes = HEAD) -> int:
    return entries.announce(holder, {head: keys(*numbers)}, [], fresh=fresh)


def known(entries: Entries, *numbers: int) -> dict[tuple[str, str], list[bool]]:
    return dict(entries.where(keys(*numbers)))


def test_what_was_announced_is_known_until_it_is_withdrawn(clock: Clock) -> None:
    entries, _ = made(clock)
    told(entries, A, 1, 2, 3)
    told(entries, B, 2)
    assert known(entries, 1, 2, 4) == {A: [True, True, False], B: [False, True, False]}
    entries.announce(A, {}, keys(2, 9, 2), fresh=False)
    assert known(entries, 1, 2) == {A: [True, False], B: [False, True]}
    assert (len(entries), entries.holders) == (3, 2)


def test_a_fresh_announcement_replaces_all_of_its_holder_and_of_nobody_else(clock: Clock) -> None:
    entries, _ = made(clock)
    told(entries, A, 1, 2)
    told(entries, B, 1)
    told(entries, A, 3, fresh=True)
    assert known(entries, 1, 2, 3) == {A: [False, False, True], B: [True, False, False]}


def test_without_a_heartbeat_a_lease_lapses_and_its_number_tells(clock: Clock) -> None:
    entries, _ = made(clock)
    lease = told(entries, A, 1)
    told(entries, B, 1)
    clock.now = LEASE_SECONDS - 1
    assert entries.renew(A) == lease
    clock.now = LEASE_SECONDS + 1
    assert known(entries, 1) == {A: [True]}
    assert (len(entries), entries.holders) == (1, 1)
    clock.now = 3 * LEASE_SECONDS
    assert known(entries, 1) == {}
    assert entries.renew(A) > lease
    assert len(entries) == 0


def test_another_incarnation_ends_what_the_one_before_has_announced(clock: Clock) -> None:
    entries, _ = made(clock)
    lease = told(entries, A, 1, 2)
    again = ("uid-a", "2")
    assert told(entries, again, 2) > lease
    assert known(entries, 1, 2) == {again: [False, True]}


def test_a_holder_pushes_out_its_own_oldest_beyond_its_share(clock: Clock) -> None:
    entries, account = made(clock, limit=8 * SHARES)
    told(entries, B, 1, 2)
    told(entries, A, *range(10, 18))
    told(entries, A, 10)  # the newest now
    told(entries, A, 18, 19)
    assert known(entries, 1, 2, 10, 11, 12, 13, 18, 19) == {
        B: [True, True, False, False, False, False, False, False],
        A: [False, False, True, False, False, True, True, True],
    }
    assert account.counters == {"directory_dropped": 2}


def test_above_the_bound_of_all_who_has_the_most_loses_its_oldest(clock: Clock) -> None:
    entries, account = made(clock, limit=4 * SHARES)
    for n in range(SHARES):
        told(entries, (f"uid-{n}", "1"), *range(100 * n, 100 * n + 4))
    told(entries, B, 1000)
    assert (len(entries), account.counters) == (4 * SHARES, {"directory_dropped": 1})
    assert known(entries, 1000) == {B: [True]}
    assert sum(len(known(entries, n)) for n in range(1000)) == 4 * SHARES - 1


def test_holders_beyond_the_bound_get_no_lease(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries_module, "MAX_MEMBERS", 1)
    entries, _ = made(clock)
    assert told(entries, A, 1) > 0
    assert (entries.renew(B), told(entries, B, 1), known(entries, 1)) == (0, 0, {A: [True]})
    clock.now = LEASE_SECONDS
    assert told(entries, B, 1) > 0


def test_of_many_holders_those_with_the_longest_runs_are_told(clock: Clock) -> None:
    entries, _ = made(clock)
    for n in range(MAX_HOLDERS + 5):
        told(entries, (f"uid-{n}", "1"), *([0, 1] if n < 2 else [0] if n < MAX_HOLDERS else [1]))
    found = known(entries, 0, 1)
    assert len(found) == MAX_HOLDERS
    assert all(row[0] for row in found.values())


def test_entries_of_groups_that_have_another_home_now_go(clock: Clock) -> None:
    entries, _ = made(clock)
    told(entries, A, 1, 2)
    told(entries, A, 3, head=b"o" * 16)
    entries.keep(lambda head: head == HEAD)
    assert known(entries, 1, 2, 3) == {A: [True, True, False]}


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_announced_bounds_and_books_hold(clock: Clock, seed: int) -> None:
    draw, limit = random.Random(seed), 64
    entries, _ = made(clock, limit)
    for _ in range(500):
        holder = (f"uid-{draw.randrange(12)}", str(draw.randrange(2)))
        some = [key(draw.randrange(40)) for _ in range(draw.randrange(12))]
        match draw.randrange(4):
            case 0:
                clock.now += draw.random() * LEASE_SECONDS
            case 1:
                entries.announce(holder, {}, some, fresh=draw.random() < 0.2)
            case _:
                entries.announce(holder, {HEAD: some}, [], fresh=False)
        pairs = {(k, record.holder) for record in entries._records.values() for k in record.heads}
        assert len(pairs) == len(entries) <= limit
        assert {(k, record.holder) for k, records in entries._by_key.items() for record in records} == pairs
        assert all(len(record.heads) <= limit // SHARES for record in entries._records.values())


def test_heartbeats_do_not_wait_until_the_homes_of_all_groups_are_known(clock: Clock) -> None:
    entries, _ = made(clock)
    entries.announce(A, {HEAD: keys(1)}, [], fresh=False)
    renewed: list[int] = []

    def is_home(head: bytes) -> bool:
        other = threading.Thread(target=lambda: renewed.append(entries.renew(B)))
        other.start()
        other.join(10)
        return False

    entries.keep(is_home)
    assert (renewed, len(entries)) == ([2], 0)
