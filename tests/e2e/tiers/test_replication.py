"""Second copies of the hottest blocks that one member alone holds: how many, of which, and what they are good for."""

import time

from local_member import SLOT, LocalMember, chain
from some_members import Come, holders, put, sees
from tenant_keys import ACME, PUBLIC, acme

from kvpool_agent.flows.replicate import LOOK_SECONDS
from kvpool_agent.policy import replication
from kvpool_contract.config import Replication


def look(member: LocalMember) -> tuple[int, int]:
    """Blocks taken and declined in one look."""

    def counted() -> list[int]:
        return [member.account.counters.get(word, 0) for word in ("replicated_blocks", "replicas_declined")]

    before = counted()
    member.replicator.look(member.slab)
    taken, declined = (now - was for now, was in zip(counted(), before, strict=True))
    return taken, declined


def test_what_is_hot_and_held_once_gets_one_copy_and_no_more(come: Come) -> None:
    a, b, c = come("a"), come("b"), come("c")
    hot, twice, there = chain("hot", 12), chain("twice", 5), chain("there", 6)
    put(a.slab, hot, 4)
    put(a.slab, twice, 2)
    put(a.slab, there, 4)
    put(b.slab, there, 4)
    sees(a, b, c)
    assert look(a) == (12, 0)
    assert (holders(hot, b, c), holders(twice, b, c), holders(there, b, c)) == ([1] * 12, [0] * 5, [1] * 6)
    assert look(a) == look(b) == look(c) == (0, 0)
    taker = b if b.slab.arena.held(hot[:1]) == [True] else c
    moved = taker.account.transfers["replicate_in"]
    assert (moved.blocks, moved.bytes) == (12, 12 * SLOT)
    assert taker.slab.arena.foreign == 12
    assert taker.slab.heat.of(hot[0], time.monotonic()) == 0  # its holder goes on counting
    for member in (b, c):
        member.check()


def test_a_holder_that_dies_takes_nothing_along_that_had_a_copy(come: Come) -> None:
    a, b, c = come("a"), come("b"), come("c")
    hot, twice = chain("hot", 12), chain("twice", 5)
    put(a.slab, hot, 4)
    put(a.slab, twice, 2)
    sees(a, b, c)
    assert look(a) == (12, 0)
    a.leave()
    assert [member.load(hot) for member in (b, c)] == [12, 12]
    assert b.load(twice) == 0


def test_at_a_look_there_are_as_many_as_the_rate_allows_and_the_hottest_first(come: Come) -> None:
    a, b = come("a"), come("b")
    a.replication, b.replication = Replication(maxBytesPerSecond=SLOT), Replication(maxBytesPerSecond=1 << 20)
    for i in range(3):
        put(a.slab, chain(f"c{i}", 8), 4 + i)
    sees(a, b)
    assert look(a) == (int(LOOK_SECONDS), 0)
    kept = [b.slab.arena.run(chain(f"c{i}", 8)) for i in (2, 1, 0)]
    assert kept == [8, 2, 0]
    assert look(a) == (int(LOOK_SECONDS), 0)
    assert [b.slab.arena.run(chain(f"c{i}", 8)) for i in (2, 1, 0)] == [8, 8, 4]


def test_nothing_hotter_makes_room_and_what_was_declined_is_left_alone_for_a_while(come: Come) -> None:
    a, b = come("a"), come("b", 40)
    slots = b.slab.arena.slot_count
    put(b.slab, chain("own", slots - 4), 5)
    put(b.slab, chain("cold", 4), 1)
    put(a.slab, chain("hot", 10), 4)
    sees(a, b)
    assert look(a) == (4, 6)
    assert b.slab.arena.held(chain("own", slots - 4)) == [True] * (slots - 4)
    assert look(a) == (0, 0)
    a.replicator._offered[a.slab.id]._at = dict.fromkeys(chain("hot", 10), -replication.AGAIN_SECONDS)
    assert look(a) == (0, 6)


def test_a_cache_namespaces_copies_go_to_its_members_alone(come: Come) -> None:
    both = {"public": [PUBLIC], "acme": [ACME]}
    a, public = come("a", keys=both), come("public", keys={"public": [PUBLIC]})
    put(acme(a), chain("hot", 7), 5)
    sees(a, public)
    a.replicator.look(acme(a))
    assert "replicated_blocks" not in a.account.counters
    member = come("member", keys=both)
    sees(a, public, member)
    a.replicator.look(acme(a))
    assert a.account.counters["replicated_blocks"] == 7
    assert (len(acme(member).arena), len(acme(public).arena)) == (7, 0)


def test_without_a_rate_nothing_is_offered(come: Come) -> None:
    a, b = come("a"), come("b")
    a.replication = Replication()
    put(a.slab, chain("hot", 10), 4)
    sees(a, b)
    assert look(a) == (0, 0)
    assert len(b.slab.arena) == 0
