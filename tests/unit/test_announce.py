"""How often a holder looks through its arena for what its homes should know."""

import types
from typing import Any

import pytest
from local_member import FORMAT

from kvpool_agent.account import Account
from kvpool_agent.flows import announce
from kvpool_agent.flows.announce import Announcer
from kvpool_agent.policy.homes import View
from kvpool_agent.store.arena import Arena
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slab


def test_for_many_homes_the_arena_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    slab = Slab(FORMAT, {}, 4096, ArenaMemory.anonymous(8 * 4096), Arena(8))
    for n, parent in ((1, b""), (2, bytes([1]) * 16)):
        (slot,) = slab.arena.reserve(1, 0.0)
        slab.arena.commit(bytes([n]) * 16, parent, slot, b"t" * 16, foreign=False)
    looks: list[int] = []
    placed = slab.arena.placed
    monkeypatch.setattr(slab.arena, "placed", lambda: (looks.append(1), placed())[1])
    seen = View({f"uid-{n}": "1" for n in range(40)})
    nobody: Any = types.SimpleNamespace(live=lambda fingerprint: [], look=lambda fingerprint: seen, settled=False)
    announcer = Announcer(nobody, "uid-0", nobody, nobody, nobody, nobody, Account())
    announcer.look(slab)
    told = {uid: set(home.pending) for (uid, _), home in announcer._told.items() if home.pending}
    assert told == {uid: set(slab.arena.keys()) for uid in seen.homes(bytes([1]) * 16) if uid != "uid-0"}
    assert len(looks) == 2  # for the homes that are new, and for those that come anew in this view


@pytest.mark.parametrize(("seconds", "times"), [(0.0, 3), (3600.0, 1)])
def test_what_was_told_to_one_that_is_no_home_goes_though_the_view_stays(
    monkeypatch: pytest.MonkeyPatch, seconds: float, times: int
) -> None:
    monkeypatch.setattr(announce, "KEEP_SECONDS", seconds)
    slab = Slab(FORMAT, {}, 4096, ArenaMemory.anonymous(8 * 4096), Arena(8))
    seen, kept = View({"uid-0": "1", "uid-1": "1", "uid-2": "1"}), list[list[bool]]()
    heads = [bytes([n]) * 16 for n in range(20)]
    entries: Any = types.SimpleNamespace(keep=lambda is_home: kept.append([is_home(head) for head in heads]))
    nobody: Any = types.SimpleNamespace(live=lambda fingerprint: [], look=lambda fingerprint: seen, settled=True)
    announcer = Announcer(nobody, "uid-0", nobody, nobody, entries, nobody, Account())
    for _ in range(3):
        announcer.look(slab)
    assert kept == [["uid-0" in seen.homes(head) for head in heads]] * times
    assert {True, False} == set(kept[0])


def test_what_was_taken_back_is_told_again_when_it_may_be() -> None:
    slab = Slab(FORMAT, {}, 4096, ArenaMemory.anonymous(8 * 4096), Arena(8))
    (slot,) = slab.arena.reserve(1, 0.0)
    slab.arena.commit(bytes([1]) * 16, b"", slot, b"t" * 16, foreign=False)
    seen, withdrawn = View({"uid-0": "1", "uid-1": "1"}), [False]
    nobody: Any = types.SimpleNamespace(live=lambda fingerprint: [], look=lambda fingerprint: seen, settled=False)
    announcer = Announcer(nobody, "uid-0", nobody, nobody, nobody, nobody, Account(), lambda: withdrawn[0])
    pending: list[list[bytes]] = []
    for withdrawn[0] in (False, True, False):
        announcer.look(slab)
        (home,) = announcer._told.values()
        pending.append(list(home.pending))
    assert pending == [[bytes([1]) * 16], [], [bytes([1]) * 16]]
