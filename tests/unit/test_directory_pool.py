"""Eight members in one process: what a lookup costs, and and what one that joins, dies, lies or forgets costs."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from local_member import FORMAT, LocalMember, chain, until, until_announced, until_known

from kvpool_agent.directory import members as view
from kvpool_agent.flows.announce import Announcer
from kvpool_agent.peer import frames
from kvpool_agent.policy import homes
from kvpool_agent.policy.groups import groups_of
from kvpool_agent.policy.homes import View

BLOCKS = 40  # three groups


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LocalMember]]:
    monkeypatch.setattr(view, "REFRESH_SECONDS", 0.05)
    monkeypatch.setattr(homes, "SETTLE_SECONDS", 1.0)
    seeds = tmp_path / "members"
    seeds.write_text("")
    made: list[LocalMember] = []

    def one(uid: str, *, seed: bool = True, **options: object) -> LocalMember:
        made.append(LocalMember(uid, seeds, **options).start(seed=seed))  # type: ignore[arg-type]
        return made[-1]

    yield one
    for member in made:
        member.kill()


@pytest.fixture
def eight(make: Callable[..., LocalMember]) -> list[LocalMember]:
    found = [make(f"uid-{n}") for n in range(8)]
    until_known(found)
    return found


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
    until("settled", lambda: all(member.homes.settled for member in members))
    assert worst(members, chains) == 0
    return chains


def worst(members: list[LocalMember], chains: list[list[bytes]]) -> int:
    """The most groups of one chain that one member does not find."""
    return max(member.missing_groups(keys) for member in members for keys in chains)


def until_settled(members: list[LocalMember], chains: list[list[bytes]]) -> int:
    """Asks on until the view has settled everywhere; the worst that was seen."""
    found = worst(members, chains)
    while not all(member.homes.settled for member in members):
        found = max(found, worst(members, chains))
    return found


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
    until("settled", lambda: all(member.homes.settled for member in eight))
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
    assert until_settled([*eight, joined], chains) == 0
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
    assert until_settled(rest, chains) == 0
    until_announced(rest)


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
    assert until_settled(everybody, chains) == 0


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
    until("settled", lambda: asker.homes.settled)
    freeze(asker, monkeypatch)
    for member in eight:
        if member.uid in view_now.homes(keys[16]):
            member.kill()
    found = asker.locator.locate(FORMAT, keys, float("inf"))
    assert (found.end, found.reason) == (16, "directory_unreachable")
    assert asker.locator.locate(FORMAT, [*keys[:16]], float("inf")).reason == ""
