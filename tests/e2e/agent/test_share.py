"""Blocks that one replica computed are loaded by another: exact blocks, exact bytes, equal content."""

import pytest
from agent_pool import AgentPool, Node
from standin_engine import Served, prompt

from kvpool_contract.status import NearIdentical

BLOCKS = 24
ROW = 4096


def moved(node: Node, what: str) -> tuple[int, int]:
    """(blocks, bytes) of a transfer since the agent's start."""
    transfer = node.status().transfers.get(what)
    return (transfer.blocks, transfer.bytes) if transfer is not None else (0, 0)


def test_what_one_replica_computed_another_loads_and_only_the_new_part_is_stored_and_moved(pool: AgentPool) -> None:
    a, b = pool.all_joined("ab")
    long = prompt("shared", BLOCKS)
    assert a.engine.serve(long[: -4 * 8]) == Served(computed=BLOCKS - 8)
    a.until_blocks(BLOCKS - 8)
    b.until_sees(a)
    assert b.engine.serve(long) == Served(pool=BLOCKS - 8, computed=8)
    b.until_blocks(BLOCKS)
    assert moved(b, "demand_in") == ((BLOCKS - 8), (BLOCKS - 8) * ROW)
    assert moved(a, "demand_out") == moved(b, "demand_in")
    assert moved(b, "store_in") == (8, 8 * ROW)
    # the engine offers all it has again and again after an attach: nothing of it is stored or moved twice
    assert b.engine.serve(long) == Served(host=BLOCKS)
    assert a.until_sees(b).engine.serve(long) == Served(host=BLOCKS - 8, pool=8)
    a.until_blocks(BLOCKS)
    assert moved(a, "demand_in") == (8, 8 * ROW)
    assert moved(a, "store_in") == ((BLOCKS - 8), (BLOCKS - 8) * ROW)
    assert moved(b, "store_in") == (8, 8 * ROW)
    assert moved(b, "demand_in") == ((BLOCKS - 8), (BLOCKS - 8) * ROW)


def test_hits_are_told_apart_by_who_computed_and_agree_with_the_engines_own_counters(pool: AgentPool) -> None:
    a, b = pool.all_joined("ab")
    a.engine.serve(prompt("one", BLOCKS))
    b.until_sees(a)
    b.engine.serve(prompt("one", BLOCKS))
    b.engine.serve(prompt("two", 6))
    b.engine.serve(prompt("two", 6))
    status = b.until("three requests", lambda s: s.hits.local_blocks == 6 and s.engine_tokens.host == 6 * 4)
    assert (status.hits.shared_blocks, status.hits.computed_blocks) == (BLOCKS, 6)
    assert (status.engine_tokens.pool, status.engine_tokens.computed) == (BLOCKS * 4, 6 * 4)
    assert status.misses == {"never_published": 6}


def test_two_requests_for_one_prefix_at_the_same_time_move_its_bytes_once(pool: AgentPool) -> None:
    a, b = pool.all_joined("ab")
    a.engine.serve(prompt("shared", BLOCKS))
    b.until_sees(a)
    served = b.engine.serve_together([prompt("shared", BLOCKS), prompt("shared", BLOCKS)])
    assert sorted(served, key=lambda one: one.host) == [Served(pool=BLOCKS), Served(host=BLOCKS)]
    assert moved(b, "demand_in") == (BLOCKS, BLOCKS * ROW)
    assert moved(a, "demand_out") == (BLOCKS, BLOCKS * ROW)


def test_a_chain_whose_parts_lie_at_two_members_is_joined(pool: AgentPool) -> None:
    a, b, c = pool.all_joined("abc")
    long = prompt("shared", BLOCKS)
    a.engine.serve(long[: 4 * 10])
    a.until_blocks(10)
    b.until_sees(a)
    assert b.engine.serve(long) == Served(pool=10, computed=BLOCKS - 10)
    b.until_blocks(BLOCKS)
    a.replica.stop()
    assert c.until_sees(b).engine.serve(long) == Served(pool=BLOCKS)


def test_an_arena_under_pressure_keeps_its_limit_and_the_latest_prompts(pool: AgentPool) -> None:
    row = 64 << 10
    slots, limit = 16, 17 * row  # the slots' headers take part of the last one
    a = pool.node("a", arenaBytes=limit).start().attach(row_bytes=row, rows=64)
    b = pool.node("b").start().attach(row_bytes=row, rows=64)
    for i in range(5):
        assert a.engine.serve(prompt(f"p{i}", 8)) == Served(computed=8)
        arena = a.until(f"prompt {i}", lambda s, i=i: s.transfers["store_in"].blocks == 8 * (i + 1)).arena
        assert arena.used_bytes <= arena.limit_bytes == limit
        assert (arena.blocks, arena.evicted_blocks) == (min(8 * (i + 1), slots), max(0, 8 * (i + 1) - slots))
    b.until_sees(a).until_knows(prompt("p4", 8))  # a full arena looks as it did before the last prompt
    assert b.engine.serve(prompt("p4", 8)) == Served(pool=8)
    assert b.engine.serve(prompt("p3", 8)) == Served(pool=8)
    assert b.engine.serve(prompt("p0", 8)) == Served(computed=8)


@pytest.mark.parametrize("corrupt", [False, True])
def test_bytes_changed_in_the_own_arena_are_found_by_their_tag_and_never_loaded(pool: AgentPool, corrupt: bool) -> None:
    a = pool.joined("a")
    a.engine.serve(prompt("p", 8))
    a.until_blocks(8)
    a.engine.forget()
    if corrupt:
        flip(a, 3 * ROW)
    expected = Served(pool=3, computed=5) if corrupt else Served(pool=8)
    assert a.engine.serve(prompt("p", 8)) == expected
    assert a.status().counters.get("tag_failures", 0) == corrupt
    # the bad block is gone and the one that was computed in its place has been taken
    a.until_blocks(8)
    a.engine.forget()
    assert a.engine.serve(prompt("p", 8)) == Served(pool=8)
    assert a.status().counters.get("tag_failures", 0) == corrupt


@pytest.mark.parametrize("corrupt", [False, True])
def test_bytes_changed_in_a_peers_arena_are_found_by_their_tag_and_never_loaded(pool: AgentPool, corrupt: bool) -> None:
    a, b = pool.all_joined("ab")
    a.engine.serve(prompt("p", 8))
    a.until_blocks(8)
    b.until_sees(a)
    if corrupt:
        flip(a, 3 * ROW)
    assert b.engine.serve(prompt("p", 8)) == (Served(pool=3, computed=5) if corrupt else Served(pool=8))
    # the one that holds it finds it, and drops it instead of sending it
    assert [node.status().counters.get("tag_failures", 0) for node in (a, b)] == [corrupt, 0]
    assert b.status().misses == ({"evicted": 5} if corrupt else {})


def flip(node: Node, offset: int) -> None:
    """Changes one byte of the arena's memory behind the agent's back."""
    with node.arena_file().open("r+b") as memory:
        memory.seek(offset)
        old = memory.read(1)
        memory.seek(offset)
        memory.write(bytes([old[0] ^ 1]))


def test_prompts_that_differ_in_something_small_at_one_place_are_told(pool: AgentPool) -> None:
    (a,) = pool.all_joined("a")
    shared = prompt("instructions", BLOCKS)[:-1]
    a.engine.serve([*shared, *prompt("first", 70)])
    for day in range(8):
        assert a.engine.serve([*shared, *prompt(f"day-{day}", 70 + day % 2)]).computed == 70 + day % 2
    status = a.until("nine requests", lambda s: s.reuse[""].asked_blocks == 9 * (BLOCKS + 70) + 4)
    assert status.reuse[""].near_identical == [NearIdentical(8, BLOCKS * 4, 4, BLOCKS * 4 + 280, BLOCKS * 4 + 284)]
