"""The heads of what members hold: told with numbers, within bounds, and taken for all there is only when they are."""

import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kvpool_agent.directory.members import Member
from kvpool_agent.flows.heads import RENEW_SECONDS, HeadFilter
from kvpool_agent.peer import frames
from kvpool_agent.store import heads as rule
from kvpool_agent.store.arena import Arena
from kvpool_agent.store.heads import NOTHING, UNKNOWN, Heads, Told, Union, name_of
from kvpool_client import heads as client
from kvpool_client.heads import KnownHeads
from kvpool_contract.names import block_key

A, B, C = (letter * 8 for letter in (b"a", b"b", b"c"))
FORMAT = bytes(range(16))


def test_a_client_names_a_block_as_the_pool_does() -> None:
    engine_hash, group = bytes(range(32)), 7
    key = engine_hash + group.to_bytes(4, "big")
    assert client.name_of(key, FORMAT) == name_of(block_key(engine_hash, group, FORMAT))
    assert (client.NAME_BYTES, client.MAX_NAMES) == (rule.NAME_BYTES, rule.MAX_HEADS)


def test_changes_since_a_number_are_told_each_once_and_else_all_there_is() -> None:
    heads = Heads()
    heads.put(A)
    whole = heads.since(UNKNOWN)
    assert (whole.whole, whole.added) == (True, (A,))
    heads.put(B)
    heads.put(B)
    heads.take(A)
    heads.take(C)
    heads.put(C)
    heads.take(C)
    told = heads.since(whole.number)
    assert told == Told(heads.number, False, (B,), (A, C))
    assert heads.since(told.number) == Told(told.number)
    # of another life: all
    assert heads.since(told.number + 5).whole


def test_who_has_missed_more_changes_than_are_kept_is_told_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "MAX_CHANGES", 4)
    heads = Heads()
    before = heads.number
    for n in range(4):
        heads.put(bytes([n]) * 8)
    assert not heads.since(before).whole
    heads.put(A)
    assert heads.since(before) == Told(heads.number, True, heads.since(UNKNOWN).added)


def test_more_than_the_limit_tells_nothing() -> None:
    heads = Heads(limit=1)
    heads.put(A)
    assert heads.since(UNKNOWN).whole
    heads.put(B)
    assert heads.since(UNKNOWN) == NOTHING
    heads.take(B)
    assert heads.since(UNKNOWN).added == (A,)


def test_a_union_holds_a_name_as_long_as_one_of_its_sets_does() -> None:
    union = Union()
    union.told("x", Told(3, True, (A, B)))
    union.told("y", Told(9, True, (B, C)))
    assert set(union.names.since(UNKNOWN).added) == {A, B, C}
    union.told("x", Told(5, False, (), (A, B)))
    assert set(union.names.since(UNKNOWN).added) == {B, C}
    union.forget("y")
    assert (union.names.since(UNKNOWN).added, union.knows("y"), union.number("y")) == ((), False, UNKNOWN)
    assert (union.knows("x"), union.number("x")) == (True, 5)
    union.told("x", NOTHING)
    assert not union.knows("x")


def test_a_whole_word_replaces_what_was_known_of_a_set() -> None:
    union = Union()
    union.told("x", Told(3, True, (A, B)))
    union.told("x", Told(4, True, (B, C)))
    assert set(union.names.since(UNKNOWN).added) == {B, C}


def test_changes_of_a_set_that_was_forgotten_meanwhile_are_not_taken_for_all_of_it() -> None:
    union = Union()
    union.told("x", Told(3, True, (A, B)))
    union.forget("x")  # by one who knows its address as another's, while this one asks for changes
    union.told("x", Told(4, False, (C,)))
    assert (union.knows("x"), union.number("x"), union.names.since(UNKNOWN).added) == (False, UNKNOWN, ())
    union.told("x", Told(4, True, (A, B, C)))
    assert union.knows("x")


def test_a_set_beyond_the_limit_of_all_is_not_known_and_asked_for_again_later() -> None:
    now = 0.0
    union = Union(limit=3, clock=lambda: now)
    union.told("x", Told(3, True, (A, B)))
    union.told("y", Told(9, True, (B, C)))
    assert (union.knows("x"), union.knows("y"), union.number("y")) == (True, False, 9)
    assert set(union.names.since(UNKNOWN).added) == {A, B}
    union.told("x", Told(4, False, (), (A, B)))
    union.told("y", Told(10, False, (A,)))
    assert (union.knows("y"), union.number("y")) == (False, 10)
    now = rule.OVER_SECONDS
    union.told("y", Told(11))
    assert union.number("y") == UNKNOWN
    union.told("y", Told(11, True, (B, C)))
    assert union.knows("y")


def test_an_arena_tells_the_blocks_without_a_parent_until_they_are_gone() -> None:
    arena = Arena(2)
    keys = [bytes([n]) * 16 for n in range(3)]
    for n in range(2):
        arena.commit(keys[n], keys[n - 1] if n else b"", arena.reserve(1, 0.0)[0], b"", foreign=False)
    assert arena.heads.since(UNKNOWN).added == (name_of(keys[0]),)
    (slot,) = arena.reserve(1, 0.0)  # the leaf goes first
    assert arena.heads.since(UNKNOWN).added == (name_of(keys[0]),)
    arena.commit(keys[2], b"", slot, b"", foreign=True)
    arena.drop(keys[0])
    assert arena.heads.since(UNKNOWN).added == (name_of(keys[2]),)


# -- the client ----------------------------------------------------------------------------------------


def key_of(n: int) -> bytes:
    return bytes([n]) * 32 + bytes(4)


def word(number: int, names: Sequence[bytes], added: int, **header: Any) -> tuple[dict[str, Any], bytes]:
    said = {"number": number, "whole": False, "added": added, "seconds": 3.0, "format": FORMAT.hex()}
    return {**said, **header}, b"".join(names)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    clock = types.SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(client, "time", clock)
    return lambda seconds: setattr(clock, "now", seconds)


@pytest.mark.usefixtures("now")
def test_only_what_no_member_holds_is_ruled_out_and_no_longer_than_was_said() -> None:
    known = KnownHeads()
    assert not known.rule_out(key_of(1), 100.0)
    known.take(*word(4, [client.name_of(key_of(n), FORMAT) for n in (1, 2)], 2, whole=True))
    assert [known.rule_out(key_of(n), 102.9) for n in (1, 2, 3)] == [False, False, True]
    known.take(*word(5, [client.name_of(key_of(n), FORMAT) for n in (3, 1)], 1))
    assert [known.rule_out(key_of(n), 102.9) for n in (1, 2, 3)] == [True, False, False]
    assert not known.rule_out(key_of(1), 103.0)
    known.take(*word(0, [], 0))
    assert (known.rule_out(key_of(1), 100.0), known.number) == (False, 0)


@pytest.mark.parametrize(
    ("header", "tail"),
    [
        ({"number": "x"}, b""), ({"added": 1}, b""), ({"added": -1}, b""), ({"added": 0}, b"1234567"),
        ({"format": "no hex"}, b""), ({"format": None}, b""), ({"seconds": None}, b""),
        ({"added": rule.MAX_HEADS + 1}, b"".join(n.to_bytes(8, "big") for n in range(rule.MAX_HEADS + 1))),
    ],
)  # fmt: skip
def test_a_word_without_sense_is_an_error_and_rules_nothing_out(header: dict[str, Any], tail: bytes) -> None:
    known = KnownHeads()
    with pytest.raises((KeyError, TypeError, ValueError)):
        known.take(word(1, [], 0, **header)[0], tail)
    assert not known.rule_out(key_of(1), 0.0)


# -- what the agent tells ------------------------------------------------------------------------------


class Client:
    """A port that takes what it is told as the real client does."""

    def __init__(self) -> None:
        self.known = KnownHeads()
        self.words = 0

    def send(self, header: dict[str, Any], tail: bytes = b"") -> None:
        self.words += 1
        self.known.take(header, tail)


class Place:
    """A filter with an arena and members that a test makes up."""

    def __init__(self) -> None:
        self.arena, self.others, self.obstacle = Arena(8), {}, False
        slab = types.SimpleNamespace(arena=self.arena, fingerprint=FORMAT)
        self.union = Union()
        members = types.SimpleNamespace(heads=self.union, all=lambda: list(self.others.values()))
        self.filter = HeadFilter(types.SimpleNamespace(current=slab), members, lambda others: self.obstacle)
        self.client = Client()
        self.filter.join(self.client)

    def member(self, address: str, *, live: bool = True, format_: str = FORMAT.hex(), blocks: int = 1) -> None:
        welcome = frames.Welcome(3, address, "inc", "Ready(warm)", format_, blocks)
        self.others[address] = Member(address, live, welcome)

    def rules_out(self, n: int) -> bool:
        self.filter.look()
        known = self.client.known
        holds, _, _, told = self.filter.known  # what the status shows
        assert (holds, told) == (bool(known.number), known.number)
        return known.rule_out(key_of(n), client.time.monotonic())


def test_own_blocks_count_as_soon_as_they_are_there() -> None:
    place = Place()
    assert place.rules_out(1)
    place.arena.commit(block_key(key_of(1)[:32], 0, FORMAT), b"", 0, b"", foreign=False)
    assert not place.rules_out(1)
    assert place.rules_out(2)


def test_it_holds_only_while_the_heads_of_all_live_members_of_the_format_are_known() -> None:
    place = Place()
    place.member("x")
    assert not place.rules_out(1), "of x nothing is known"
    place.union.told("x", Told(1, True, (client.name_of(key_of(2), FORMAT),)))
    assert [place.rules_out(n) for n in (1, 2)] == [True, False]
    place.member("y")
    assert not place.rules_out(1), "of y nothing is known"
    place.member("y", live=False)
    assert place.rules_out(1)
    place.member("y", format_="00")
    assert place.rules_out(1)
    place.union.forget("x")
    assert not place.rules_out(1)


def test_it_does_not_hold_while_a_miss_may_have_another_reason() -> None:
    place = Place()
    place.obstacle = True
    assert not place.rules_out(1)
    place.obstacle = False
    assert place.rules_out(1)
    place.member("z", format_="00")  # nobody but an incompatible one
    assert not place.rules_out(1)
    place.member("z", format_="00", blocks=0)
    assert place.rules_out(1)


def test_a_client_is_told_changes_and_else_once_a_second_that_it_holds_still(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = types.SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("kvpool_agent.flows.heads.time", clock)
    place = Place()
    for _ in range(3):
        place.filter.look()
    assert place.client.words == 1
    clock.now += RENEW_SECONDS
    place.filter.look()
    assert place.client.words == 2
    place.union.told("x", Told(1, True, (A,)))
    place.filter.look()
    assert (place.client.words, place.client.known.number) == (3, place.filter.known[2])
    place.obstacle = True
    for _ in range(2):
        place.filter.look()
    assert (place.client.words, place.client.known.number) == (4, 0)
    place.filter.leave(place.client)
    place.obstacle = False
    place.filter.look()
    assert place.client.words == 4


def test_what_clients_have_been_told_is_what_the_one_that_knows_least_has() -> None:
    place = Place()
    assert place.filter.known[3] == 0
    place.filter.look()
    first = place.filter.known[3]
    place.union.told("x", Told(1, True, (A,)))
    assert place.filter.known[2] > place.filter.known[3] == first > 0
    place.filter.look()
    assert place.filter.known[2] == place.filter.known[3] > first
    place.filter.join(Client())
    assert place.filter.known[3] == 0
