"""Eight members in one process: what a lookup costs, and what one that joins, dies, hangs or forgets costs."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from local_member import FORMAT, WAIT, LocalMember, chain, keys_at, settle, until, until_announced, until_known

from kvpool_agent.directory import learnt, locate
from kvpool_agent.flows.announce import Announcer
from kvpool_agent.peer import frames
from kvpool_agent.policy.groups import groups_of
from kvpool_agent.policy.homes import View

BLOCKS = 40  # three groups


def first_home_of(uid: str, members: Iterable[str], keys: list[bytes]) -> int:
    """Of how many groups of a chain this member is the first home."""
    pool = View(dict.fromkeys(members, ""))
    return sum(pool.homes(keys[start])[0] == uid for start, _ in groups_of(len(keys)))


def established(members: list[LocalMember], holders: list[LocalMember], home: str) -> list[list[bytes]]:
    """Four chains, held by some of the members, that all can find. At least two groups of each have `home` as their
    first one, which is or will be a member."""
    uids = {member.uid for member in members} | {home}
    names = (chain(f"c{n}", BLOCKS) for n in itertools.count())
    chains = list(itertools.islice((keys for keys in names if first_home_of(home, uids, keys) > 1), 4))
    for keys, holder in zip(chains, itertools.cycle(holders)):
        holder.store(keys)
    until_announced(members)
    settle(members)
    assert worst(members, chains) == 0
    return chains


def worst(members: list[LocalMember], chains: list[list[bytes]]) -> int:
    """The most groups of one chain that one member does not find."""
    return max(member.missing_groups(keys) for member in members for keys in chains)


def worst_while_settling(members: list[LocalMember], chains: list[list[bytes]]) -> int:
    """The worst before and after the time that a change takes to be told to all."""
    before = worst(members, chains)
    settle(members)
    return max(before, worst(members, chains))


def freeze(member: LocalMember, patch: pytest.MonkeyPatch) -> None:
    """Lets it not notice who comes and goes from now on."""
    seen = member.members.live(FORMAT)
    patch.setattr(member.members, "live", lambda _: seen)


def counted(member: LocalMember, keys: list[bytes]) -> tuple[int, int]:
    """Calls and bytes of one lookup."""
    before = Counter(member.account.counters)
    assert member.missing_groups(keys) == 0
    found = Counter(member.account.counters) - before
    assert found["lookups"] == 1
    return found["lookup_calls"], found["lookup_bytes"]


def frame(message: frames.AnyMessage, tail: int) -> int:
    return len(frames.encode(message, tail)) + tail


def test_calls_and_bytes_of_a_lookup(eight: list[LocalMember]) -> None:
    asker, holder = eight[0], eight[1]
    prompts = {(tokens, block): chain(f"p{tokens}-{block}", tokens // block)
               for tokens, block in ((100_000, 256), (100_000, 128), (2_000, 256))}  # fmt: skip
    for keys in prompts.values():
        holder.store(keys)
    until_announced(eight)
    settle(eight)
    cost = {}
    for prompt, keys in prompts.items():
        groups = groups_of(len(keys))
        by_home: dict[str, int] = {}  # keys asked of each
        for start, end in groups:
            home = View({m.uid: m.life[1] for m in eight}).homes(keys[start])[0]
            by_home[home] = by_home.get(home, 0) + end - start
        by_home.pop(asker.uid, None)
        if len(eight) - 1 <= len(groups):  # all are asked what they hold
            calls = len(eight) - 1
            size = calls * (frame(frames.Locate(FORMAT), 16 * len(keys)) + frame(frames.Located(), len(keys)))
        else:
            calls, answer = len(by_home), frames.Found([holder.life])
            size = sum(frame(frames.Where(), 16 * n) + frame(answer, (n + 7) // 8) for n in by_home.values())
        assert calls <= min(len(eight) - 1, len(groups))
        for _ in range(2):
            cost[prompt] = counted(asker, keys)
            assert cost[prompt] == (calls, size)
    assert cost == {(100_000, 256): (4, 6557), (100_000, 128): (7, 93373), (2_000, 256): (1, 180)}


def test_a_member_that_joins_hides_nothing_before_it_is_told_nor_after(
    eight: list[LocalMember], make: Callable[..., LocalMember]
) -> None:
    chains = established(eight, eight, "uid-new")
    with pytest.MonkeyPatch.context() as held_back:
        held_back.setattr(Announcer, "look", lambda *_: None)
        joined = make("uid-new")
        until_known([*eight, joined])
        assert worst(eight, chains) == 0  # though the first home of two groups of each has no entries
        assert len(joined.entries) == 0
    until_announced([*eight, joined])
    assert worst_while_settling([*eight, joined], chains) == 0
    assert len(joined.entries) > 0


def test_a_home_that_dies_hides_nothing_before_it_is_noticed_nor_after(eight: list[LocalMember]) -> None:
    dead, rest = eight[7], eight[:7]
    chains = established(eight, rest, dead.uid)
    with pytest.MonkeyPatch.context() as unnoticed:
        for member in rest:
            freeze(member, unnoticed)
        dead.kill()
        assert worst(rest, chains) == 0
    until("noticed", lambda: all(dead.uid not in member.homes.look(FORMAT).members for member in rest))
    assert worst_while_settling(rest, chains) == 0
    until_announced(rest)


def test_a_home_that_does_not_answer_hides_nothing(eight: list[LocalMember], monkeypatch: pytest.MonkeyPatch) -> None:
    asker, hung, go_on = eight[0], eight[7], threading.Event()

    def hangs(_: object) -> list[object]:
        assert go_on.wait(WAIT)
        return []

    keys, *_ = established(eight, eight[1:7], hung.uid)
    monkeypatch.setattr(locate, "LOCATE_SECONDS", 6.0)  # half of it for the second homes, also on a busy machine
    monkeypatch.setattr(hung.entries, "where", hangs)
    try:
        assert asker.missing_groups(keys) == 0
        assert asker.breakers.view(hung.address) == ("closed", 1)
    finally:
        go_on.set()


def test_a_home_that_lost_all_its_entries_is_told_them_again(
    eight: list[LocalMember], make: Callable[..., LocalMember]
) -> None:
    chains = established(eight, eight[:7], "uid-7")
    had = len(eight[7].entries)
    with pytest.MonkeyPatch.context() as held_back:
        held_back.setattr(Announcer, "look", lambda *_: None)
        eight[7].leave()
        again = make("uid-7")
        everybody = [*eight[:7], again]
        until_known(everybody)
        assert worst(everybody, chains) == 0
        assert len(again.entries) == 0
    until_announced(everybody)
    assert len(again.entries) == had
    assert worst_while_settling(everybody, chains) == 0


def test_with_both_homes_silent_the_group_is_missed_and_that_is_the_reason(
    eight: list[LocalMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    asker, holder = eight[0], eight[1]
    names = (chain(f"c{n}", BLOCKS) for n in itertools.count())
    view_now = View({member.uid: "" for member in eight})
    keys = next(keys for keys in names if not {"uid-0", "uid-1"} & set(view_now.homes(keys[16]))
                and not set(view_now.homes(keys[0])) & set(view_now.homes(keys[16])))  # fmt: skip
    holder.store(keys)
    until_announced(eight)
    settle([asker])
    freeze(asker, monkeypatch)
    for member in eight:
        if member.uid in view_now.homes(keys[16]):
            member.kill()
    assert asker.locate(keys) == (16, "directory_unreachable")
    assert asker.locate(keys[:16]) == (16, "")


# -- members told by members -----------------------------------------------------------------------------


def tell(one: LocalMember, by: LocalMember, members: list[tuple[str, str]]) -> None:
    """As if the other member had said that it knows these."""
    one.members._told(one.members._links[by.address], members)


def test_a_member_that_no_seed_names_is_found_through_others_and_forgotten_when_it_is_gone(
    make: Callable[..., LocalMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learnt, "GONE_SECONDS", 3.0)
    seeds, hidden = [make("uid-0"), make("uid-1")], make("uid-hidden", seed=False)
    everybody = [*seeds, hidden]
    hidden.store(chain("hidden", BLOCKS))
    until("sees both", lambda: len(hidden.homes.look(FORMAT).members) == 3)
    # nobody dials it: the file does not name it. One is told by hand, the other one by the first
    until_known(seeds)
    tell(*seeds, [(hidden.address, hidden.uid)])
    until_known(everybody)
    until_announced(everybody)
    assert [member.missing_groups(chain("hidden", BLOCKS)) for member in seeds] == [0, 0]
    assert [member.members.learnt for member in everybody] == [1, 1, 0]
    hidden.kill()
    until("forgotten", lambda: [len(member.members.all()) for member in seeds] == [1, 1])


def test_addresses_that_are_forged_own_or_of_a_member_known_already_leave_nothing(
    make: Callable[..., LocalMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learnt, "FIRST_SECONDS", 0.3)
    one, other = make("uid-0"), make("uid-1")
    until_known([one, other])
    port = other.server.port
    tell(one, other, [("127.0.0.1:1", "a"), (one.address, "b"), (f"127.0.0.2:{port}", "c"), ("a.name:1", "d")])
    tell(one, other, [(f"127.0.0.3:{port}", "uid-1"), (f"127.0.0.4:{port}", "uid-0")])  # known, and the own one
    until("tried", lambda: one.members.learnt > 0)
    until("given up", lambda: not one.members._learnt.addresses(time.monotonic()))
    until("seeds alone", lambda: [member.address for member in one.members.all()] == [other.address])
    until_known([one, other])


# -- members of another version, and what is evicted ---------------------------------------------------------------


def test_a_member_of_the_first_version_is_asked_itself(
    eight: list[LocalMember], make: Callable[..., LocalMember]
) -> None:
    old = make("uid-old", directory=False)
    keys = chain("old", BLOCKS)
    old.store(keys)
    until("seen", lambda: all(old.address in [m.address for m in one.members.live(FORMAT)] for one in eight))
    assert all("uid-old" not in member.homes.look(FORMAT).members for member in eight)
    settle(eight)
    homes_asked = {homes_of(eight, keys[start])[0] for start, _ in groups_of(len(keys))} - {"uid-0"}
    calls, _ = counted(eight[0], keys)
    assert calls == len(homes_asked) + 1
    assert eight[0].load(keys) == BLOCKS
    new_keys = chain("new", BLOCKS)
    eight[3].store(new_keys)
    until("sees them", lambda: old.members.live(FORMAT))
    assert old.load(new_keys) == BLOCKS  # it asks everybody, as ever


def homes_of(members: list[LocalMember], head: bytes) -> tuple[str, ...]:
    return View({member.uid: "" for member in members}).homes(head)


def test_what_is_evicted_is_withdrawn_and_what_was_dropped_at_a_home_comes_again(
    make: Callable[..., LocalMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [make(f"uid-{n}", slots=64) for n in range(3)]
    keys, others = chain("first", BLOCKS), chain("second", BLOCKS)
    members[0].store(keys)
    until_known(members)
    until_announced(members)
    members[0].store(others)  # there is no room for both: the end of the first chain goes
    until_announced(members)
    left = set(members[0].slab.arena.keys())
    assert len(left) == members[0].slab.arena.slot_count < 2 * BLOCKS
    for home in members[1:]:
        until("withdrawn", lambda home=home: keys_at(home, members[0].life) <= left)
    # a home that forgets all, as after a lapsed lease, is told all again
    for home in members[1:]:
        with home.entries._lock:
            home.entries._forget(home.entries._records["uid-0"])
    until_announced(members)
    assert members[0].account.counters["announced_again"] == 2


def test_a_block_whose_parent_another_member_holds_is_no_orphan(
    make: Callable[..., LocalMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = make("uid-0"), make("uid-1")
    keys = chain("c", 6)
    other.store(keys[:2])
    one.store(keys, start=3)  # its parent, the third, is nowhere
    one.store(chain("d", 2), start=1)
    until_known([one, other])
    one.orphans.look(one.slab)
    assert one.slab.arena.orphan_blocks == 2
    other.store(keys[:3])
    one.orphans.look(one.slab)
    assert one.slab.arena.orphan_blocks == 1
    freeze(one, monkeypatch)
    other.kill()  # nobody can say: it stays as it was
    one.orphans.look(one.slab)
    assert one.slab.arena.orphan_blocks == 1


@pytest.mark.parametrize("own", [5, 16, 20, 37])
def test_what_lies_behind_an_own_beginning_is_found_at_its_groups_home(eight: list[LocalMember], own: int) -> None:
    asker, holder, keys = eight[0], eight[1], chain(f"own{own}", BLOCKS)
    asker.store(keys[:own])
    holder.store(keys)
    until_announced(eight)
    settle([asker])
    before = asker.account.counters.get("lookup_bytes", 0)
    assert asker.load(keys) == BLOCKS
    assert asker.account.transfers["demand_in"].blocks == BLOCKS - own
    assert asker.account.counters["lookup_bytes"] - before < 16 * (BLOCKS - own) + 400  # the rest was not asked for


def test_who_may_give_nothing_away_takes_back_what_it_has_announced(make: Callable[..., LocalMember]) -> None:
    members = [make(f"uid-{n}") for n in range(3)]
    members[0].store(chain("c", BLOCKS))
    until_known(members)
    until_announced(members)
    assert any(keys_at(home, members[0].life) for home in members[1:])
    members[0].withdrawn = True
    until("taken back", lambda: not any(keys_at(home, members[0].life) for home in members[1:]))
    members[0].store(chain("d", BLOCKS))
    until_known([*members, make("uid-3")])
    assert not any(keys_at(home, members[0].life) for home in members[1:])
