"""Members that lie: what one announces that it does not have, and what a home says that nobody has announced."""

import itertools
from collections.abc import Callable

import pytest
from local_member import FORMAT, LocalMember, chain, keys_at, until, until_announced, until_known

from kvpool_agent.policy import breaker
from kvpool_agent.policy.groups import groups_of

BLOCKS = 40  # three groups


def test_a_member_that_announces_what_it_does_not_have_costs_nobody_a_block(
    eight: list[LocalMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "FIRST_PAUSE_SECONDS", 60.0)  # so that nobody tries the liar again meanwhile
    asker, honest, liar = eight[0], eight[1], eight[7]
    liar.announcer.look = lambda _: None  # type: ignore[method-assign]
    held = [chain(f"held{n}", BLOCKS) for n in range(4)]
    for keys in held:
        honest.store(keys)
        lie(liar, eight, keys)
    nobody = chain("nobody", BLOCKS)
    lie(liar, eight, nobody)
    until_announced(eight)
    for keys in held:
        assert asker.load(keys) == BLOCKS  # though the liar's address may come first
    assert asker.account.misses == {}
    for _ in range(5):
        assert asker.load(nobody) == 0
    state, failures = asker.breakers.view(liar.address)
    assert failures == 3
    assert state == "open"
    assert asker.account.counters["breaker_opened"] == 1
    assert set(asker.account.misses) <= {"evicted", "breaker_open", "never_published"}
    assert sum(asker.account.misses.values()) == 5 * BLOCKS


def lie(liar: LocalMember, members: list[LocalMember], keys: list[bytes]) -> None:
    """Announces blocks that it does not hold to every member."""
    groups = {keys[start]: keys[start:end] for start, end in groups_of(len(keys))}
    for member in members:
        if member is not liar:
            liar.dialer.announce(member.address, groups, [], 10.0, fresh=False)


def test_a_flood_of_announcements_pushes_out_nobody_elses(
    make: Callable[..., LocalMember],
) -> None:
    home, honest, liar = (make(f"uid-{n}", max_entries=8 * 150) for n in range(3))
    for n in range(3):
        honest.store(chain(f"honest{n}", BLOCKS))
    until_known([home, honest, liar])
    until_announced([home, honest, liar])
    before = keys_at(home, honest.life)
    for n in range(20):
        lie(liar, [home], chain(f"flood{n}", BLOCKS))
    assert keys_at(home, honest.life) == before != set()
    assert len(home.entries) <= 150 + len(before)
    assert home.account.counters["directory_dropped"] == 20 * BLOCKS - 150


def test_a_home_that_names_others_for_what_they_do_not_have_costs_them_a_pause_and_nobody_a_block(
    eight: list[LocalMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "FIRST_PAUSE_SECONDS", 0.5)
    asker, honest, home = eight[0], eight[1], eight[7]
    held = chain("held", BLOCKS)
    honest.store(held)
    until_announced(eight)
    monkeypatch.setattr(home.entries, "where", lambda keys: [(honest.life, [True] * len(keys))])
    view = asker.homes.look(FORMAT)
    names = (chain(f"forged{n}", BLOCKS) for n in itertools.count())
    forged = list(itertools.islice((keys for keys in names if view.homes(keys[0])[0] == home.uid), 3))
    for keys in forged:
        assert asker.load(keys) == 0
    assert asker.account.misses == {"evicted": 64, "never_published": 56}  # of the groups whose home it is, and others
    assert asker.account.counters["breaker_opened"] == 1
    until("it is asked again", lambda: asker.breakers.usable(honest.address))
    assert asker.load(held) == BLOCKS
    assert asker.breakers.view(honest.address) == ("closed", 0)
