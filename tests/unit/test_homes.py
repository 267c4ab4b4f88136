"""Groups of a chain and their homes: all name the same, few move, and while views differ one that has entries is
asked."""

import itertools
import json
import random
from pathlib import Path

import pytest

from kvpool_agent.policy import homes
from kvpool_agent.policy.groups import begins_group, groups_of
from kvpool_agent.policy.homes import Asked, View, Views

MEMBERS = {f"uid-{n}": "1" for n in range(8)}
HEADS = [random.Random(n).randbytes(16) for n in range(2000)]


def test_groups_double_and_cover_the_chain_without_gaps() -> None:
    assert groups_of(0) == []
    assert groups_of(1) == [(0, 1)]
    assert groups_of(300) == [(0, 16), (16, 32), (32, 64), (64, 128), (128, 256), (256, 300)]
    for length in (*range(1, 140), 16_384):
        found = groups_of(length)
        assert [start for start, _ in found] == [0, *[end for _, end in found]][:-1]
        assert found[-1][1] == length
        assert {start for start, _ in found} == {p for p in range(length) if begins_group(p)}


@pytest.mark.parametrize(("tokens", "block", "groups"), [(100_000, 256, 6), (100_000, 128, 7), (4_000_000, 256, 11)])
def test_a_long_prompt_has_few_groups(tokens: int, block: int, groups: int) -> None:
    assert len(groups_of(tokens // block)) == groups


def test_homes_are_two_the_same_for_all_and_evenly_spread() -> None:
    view, shuffled = View(MEMBERS), View(dict(reversed(MEMBERS.items())))
    load = dict.fromkeys(MEMBERS, 0)
    for head in HEADS:
        found = view.homes(head)
        assert found == shuffled.homes(head)
        assert len(set(found)) == 2
        for member in found:
            load[member] += 1
    fair = 2 * len(HEADS) / len(MEMBERS)
    assert all(0.8 * fair < count < 1.2 * fair for count in load.values())
    assert View({"a": "1"}).homes(HEADS[0]) == ("a",)
    assert View().homes(HEADS[0]) == ()


def test_a_member_that_goes_moves_its_own_groups_alone() -> None:
    before, after = View(MEMBERS), View({m: i for m, i in MEMBERS.items() if m != "uid-3"})
    moved = 0
    for head in HEADS:
        first, second = before.homes(head)
        if "uid-3" not in (first, second):
            assert after.homes(head) == (first, second)
        else:
            moved += 1
            assert after.homes(head)[0] == (second if first == "uid-3" else first)
    assert 0 < moved < len(HEADS) / 3


def test_homes_are_those_that_other_builds_name() -> None:
    for vector in json.loads(Path(__file__).with_name("vectors").joinpath("homes.json").read_text()):
        assert list(View(dict.fromkeys(vector["members"], "")).homes(bytes.fromhex(vector["head"]))) == vector["homes"]


def test_in_peace_one_home_is_asked_and_the_other_is_spare() -> None:
    views = Views()
    assert views.asked(HEADS[0]) == Asked((), ())
    assert views.see(MEMBERS, 0.0) and not views.see(dict(MEMBERS), homes.SETTLE_SECONDS)
    for head in HEADS[:50]:
        first, second = View(MEMBERS).homes(head)
        assert views.asked(head) == Asked((first,), (second,))


def changed(change: str) -> dict[str, str]:
    match change:
        case "joined":
            return {**MEMBERS, "uid-new": "1"}
        case "left":
            return {m: i for m, i in MEMBERS.items() if m != "uid-3"}
        case "restarted":
            return {**MEMBERS, "uid-3": "2"}
    raise AssertionError


def test_who_has_just_come_itself_asks_both_homes() -> None:
    views = Views()
    views.see({"uid-1": "1"}, 0.0)
    views.see(MEMBERS, 0.1)
    assert all(views.asked(head) == Asked(View(MEMBERS).homes(head), ()) for head in HEADS[:50])


@pytest.mark.parametrize("change", ["joined", "left", "restarted"])
def test_after_a_change_one_that_was_a_home_before_it_is_asked_until_all_have_settled(change: str) -> None:
    views, before = Views(), View(MEMBERS)
    views.see(MEMBERS, 0.0)
    views.see(MEMBERS, 99.0)
    after = changed(change)
    assert views.see(after, 100.0)
    for head in HEADS:
        asked = views.asked(head)
        assert 1 <= len(asked.now) <= 2
        assert set(asked.now) | set(asked.spare) <= set(after)
        assert View(after).homes(head)[0] in asked.now
        assert any(m in before.homes(head) and after[m] == MEMBERS[m] for m in asked.now)
    assert not views.settled(100.0 + homes.SETTLE_SECONDS - 0.1)
    assert not views.see(after, 100.0 + homes.SETTLE_SECONDS) and views.settled(100.0 + homes.SETTLE_SECONDS)
    assert all(len(views.asked(head).now) == 1 for head in HEADS)


def test_changes_are_remembered_within_bounds_and_the_oldest_of_them_longest() -> None:
    views = Views()
    views.see(MEMBERS, -100.0)
    views.see(MEMBERS, 0.0)
    for n, change in zip(range(10 * homes.MAX_CHANGES), itertools.cycle(("joined", "left"))):
        views.see(changed(change), 0.01 * n)
    assert len(views._seen) <= homes.MAX_CHANGES
    assert views._seen[0][1].members == MEMBERS
