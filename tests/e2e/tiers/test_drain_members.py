"""Hand-off among members in one process: what goes where, in which order, and what is left, counted exactly."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from local_member import SLOT, WAIT, LocalMember, bytes_of, chain
from some_members import Come, holders, put, sees
from tenant_keys import ACME, PUBLIC, acme

from kvpool_agent.flows import handoff, takeover
from kvpool_agent.policy.heat import HotBlock
from kvpool_contract.config import Drain


def leave(member: LocalMember) -> dict[str, int]:
    """Hands over; what was counted of it."""
    member.ready = False
    member.handoff.run()
    return {word: n for word, n in member.account.counters.items() if word.startswith("drain")}


def test_sole_copies_of_hot_blocks_go_to_who_stays_with_their_heat_and_nothing_else_does(come: Come) -> None:
    leaver, a, b = come("leaver"), come("a"), come("b")
    alone, there, once = chain("alone", 20), chain("there", 9), chain("once", 7)
    put(leaver.slab, alone, 3)
    put(leaver.slab, there, 5)
    put(leaver.slab, once, 1)
    put(b.slab, there, 0)
    sees(leaver, a, b)
    assert leave(leaver) == {"drained_blocks": 20}
    assert holders(alone, a, b) == [1] * 20
    assert (holders(there, a, b), holders(once, a, b)) == ([1] * 9, [0] * 7)
    given = leaver.account.transfers["drain_out"]
    assert (given.blocks, given.bytes) == (20, 20 * SLOT)
    taker = a if a.slab.arena.held(alone[:1]) == [True] else b
    assert (taker.account.transfers["drain_in"].blocks, taker.account.counters["offered_blocks"]) == (20, 20)
    hot = {block.key: block for block in taker.slab.hottest(time.monotonic(), 100)}
    assert [round(hot[key].heat) for key in alone] == [3] * 20
    assert [hot[key].parent for key in alone] == [b"", *alone[:-1]]
    for member in (a, b):
        member.check()
    assert a.load(alone) == b.load(alone) == 20


def test_several_chains_are_shared_out_and_each_stays_together(come: Come) -> None:
    leaver, a, b = come("leaver"), come("a"), come("b")
    chains = [chain(f"c{i}", 10) for i in range(6)]
    for keys in chains:
        put(leaver.slab, keys, 2)
    sees(leaver, a, b)
    assert leave(leaver) == {"drained_blocks": 60}
    assert [len(member.slab.arena) for member in (a, b)] == [30, 30]
    assert all(sum(member.slab.arena.held(keys)) in (0, 10) for keys in chains for member in (a, b))


def test_a_receiver_takes_the_best_that_it_has_room_for_and_nothing_hotter_makes_room(come: Come) -> None:
    leaver, a, room = come("leaver"), come("a", 80), 25
    own = chain("own", a.slab.arena.slot_count - room)
    put(a.slab, own, 4)
    put(a.slab, chain("cold", room), 1)
    for i in range(3):
        put(leaver.slab, chain(f"c{i}", 10), 2 + i)  # c2 is as hot as `own`
    sees(leaver, a)
    assert leave(leaver) == {"drained_blocks": room, "drain_left_declined": 30 - room}
    assert all(a.slab.arena.held(own))
    kept = {name: a.slab.arena.run(chain(name, 10)) for name in ("c2", "c1", "c0")}
    assert kept == {"c2": 10, "c1": 10, "c0": room - 20}


def test_a_member_that_lies_about_heat_brings_no_more_than_its_part(come: Come) -> None:
    """And again in vain, under another incarnation too, until an hour is over."""
    liar, a = come("liar", 400), come("a", 80)
    slots = a.slab.arena.slot_count
    own = chain("own", slots)
    put(a.slab, own, 4)
    put(liar.slab, chain("made up", slots), 2)
    with liar.slab.heat_lock:
        liar.slab.heat.inherit([HotBlock(key, b"", 0, 1e9) for key in chain("made up", slots)], time.monotonic())
    sees(liar, a)
    assert leave(liar) == {"drained_blocks": slots // 2, "drain_left_declined": slots - slots // 2}
    assert sum(a.slab.arena.held(own)) == slots - slots // 2
    assert a.account.counters["offered_over_part"] == slots - slots // 2
    more = chain("more", 20)
    put(liar.slab, more, 9)
    blocks = [HotBlock(key, b"", 0, 1e9) for key in more]
    assert a.takeover.take(liar.life, a.slab.id, blocks, WAIT, copy=False) == [False] * 20
    later = time.monotonic() + takeover.PART_SECONDS + 1
    assert a.takeover._begin(liar.uid, a.slab.id, 20, slots // 2, later) == 20


@pytest.mark.parametrize("former", [False, True])
def test_with_nobody_who_takes_anything_all_is_left_and_counted(come: Come, former: bool) -> None:
    leaver = come("leaver")
    put(leaver.slab, chain("alone", 20), 3)
    if former:  # a member of an earlier version of the protocol gets nothing, and no question that it doesn't know
        sees(leaver, come("a", directory=False))
    assert leave(leaver) == {"drain_left_no_receiver": 20}


def test_what_does_not_fit_into_the_time_is_left_and_counted(come: Come) -> None:
    leaver, a = come("leaver"), come("a")
    leaver.drain = Drain(maxSeconds=3.0, maxBytesPerSecond=4 * SLOT)
    put(leaver.slab, chain("alone", 100), 3)
    sees(leaver, a)
    counted = leave(leaver)
    assert counted.keys() == {"drained_blocks", "drain_left_deadline"}
    assert sum(counted.values()) == 100
    # at most what the rate allows, and a second's worth that had been saved up; best first
    taken = len(a.slab.arena)
    assert counted["drained_blocks"] <= taken <= 4 * 4
    assert a.slab.arena.run(chain("alone", 100)) == taken


def test_what_a_receiver_that_dies_did_not_take_goes_to_another_one(
    come: Come, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff, "BATCH_BLOCKS", 4)
    leaver, a, b = come("leaver"), come("a"), come("b")
    for i in range(4):
        put(leaver.slab, chain(f"c{i}", 10), 2)
    sees(leaver, a, b)
    take, offers = a.takeover.take, iter(range(100))

    def dies(
        giver: tuple[str, str], slab: bytes, blocks: Sequence[HotBlock], seconds: float, *, copy: bool
    ) -> list[bool]:
        if next(offers) == 1:
            a.server.close()
        return take(giver, slab, blocks, seconds, copy=copy)

    monkeypatch.setattr(a.takeover, "take", dies)
    assert leave(leaver) == {"drained_blocks": 40}
    keys = [key for i in range(4) for key in chain(f"c{i}", 10)]
    assert sum(b.slab.arena.held(keys)) == 36
    assert min(holders(keys, a, b)) == 1


def test_who_leaves_while_it_takes_blocks_over_has_taken_none_and_they_go_to_another_one(
    come: Come, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaver, a, b = come("leaver"), come("a"), come("b")
    keys = chain("alone", 20)
    put(leaver.slab, keys, 3)
    put(a.slab, keys[:1], 2)  # so the rest is offered to it first
    sees(leaver, a, b)
    fetch = a.fetcher.fetch

    def leaves(*args: Any, **more: Any) -> str:
        reason = fetch(*args, **more)
        a.ready = False
        return reason

    monkeypatch.setattr(a.fetcher, "fetch", leaves)
    assert leave(leaver) == {"drained_blocks": 19}
    assert holders(keys[1:], a) == holders(keys[1:], b) == [1] * 19
    # what has come it would hand over itself: but for the first block another one has it now
    assert leave(a) == {"drained_blocks": 1}
    assert holders(keys, b) == [1] * 20


def test_two_that_leave_together_give_nothing_to_each_other(come: Come) -> None:
    first, second, a = come("first"), come("second"), come("a")
    mine, ours = chain("mine", 10), chain("ours", 12)
    put(first.slab, mine, 2)
    for member in (first, second):
        put(member.slab, ours, 2)
    sees(first, second, a)
    first.ready = second.ready = False
    threads = [threading.Thread(target=member.handoff.run) for member in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert a.slab.arena.held([*mine, *ours]) == [True] * 22
    assert second.slab.arena.held(mine) == [False] * 10
    assert a.account.transfers["drain_in"].blocks == 22


def test_a_cache_namespaces_blocks_go_to_its_members_alone(come: Come) -> None:
    both: dict[str, Sequence[bytes]] = {"public": [PUBLIC], "acme": [ACME]}
    leaver, public = come("leaver", keys=both), come("public", keys={"public": [PUBLIC]})
    ours, theirs = chain("ours", 10), chain("theirs", 12)
    put(leaver.slab, ours, 2)
    put(acme(leaver), theirs, 2)
    sees(leaver, public)
    assert leave(leaver) == {"drained_blocks": 10, "drain_left_no_receiver": 12}
    assert (len(public.slab.arena), len(acme(public).arena)) == (10, 0)
    member = come("member", keys=both)
    leaver.ready = True
    sees(leaver, public, member)
    assert leave(leaver)["drained_blocks"] == 10 + 12
    assert acme(member).arena.held(theirs) == [True] * 12
    assert (len(member.slab.arena), len(acme(public).arena)) == (0, 0)
    assert {bytes(acme(member).view(slot)) for slot in range(12)} <= {bytes_of(key) for key in theirs}
