"""What a request found says by whom it was computed and where it lay; what it missed, whether it ever lay anywhere."""

import time

from agent_pool import WAIT_SECONDS, AgentPool, Node
from replica import MIB, wait_for
from standin_engine import BLOCK_TOKENS, Served, engine_keys, prompt

from kvpool_contract.status import Hits

BLOCKS = 6
BIG, SLOTS = 128 << 10, 15  # of 128 KiB in 2 MiB, with the headers
NO_WARM_UP = {"prewarm": {"maxBytes": 0}}


def test_blocks_are_told_by_who_computed_them_and_by_where_they_lay(pool: AgentPool) -> None:
    a, b = pool.joined("a"), pool.node("b", **NO_WARM_UP).start().attach()
    tokens = prompt("p", BLOCKS)
    a.engine.serve(tokens)
    b.until_sees(a).until_knows(tokens)
    assert b.engine.serve(tokens) == Served(pool=BLOCKS)
    assert b.engine.serve(tokens) == Served(host=BLOCKS)
    for node in (b, a):
        node.engine.forget()
        assert node.engine.serve(tokens) == Served(pool=BLOCKS)
    b.engine.forget()
    longer = [*tokens[:-1], *prompt("longer", 2)]
    assert b.engine.serve(longer) == Served(pool=BLOCKS, computed=2)
    assert b.status().hits == Hits(2, 0, 3 * BLOCKS + BLOCKS, {}, {"peer": BLOCKS, "host": BLOCKS, "arena": 2 * BLOCKS})
    assert a.status().hits == Hits(BLOCKS, BLOCKS, 0, {"arena": BLOCKS}, {})


def serve(node: Node, tokens: list[int]) -> Served:
    node.engine.forget()
    return node.engine.serve(tokens)


def test_a_block_that_made_room_is_told_from_one_that_nobody_ever_published(pool: AgentPool) -> None:
    a = pool.node("a", arenaBytes=2 * MIB).start().attach(row_bytes=BIG, rows=64)
    b = pool.node("b", **NO_WARM_UP).start().attach(row_bytes=BIG, rows=64)
    a.until("the verdict", lambda status: status.probe.state not in ("", "pending"))
    room, gone = SLOTS - a.status().arena.blocks, 3  # the probe's rows lie there, too
    kept = room - gone
    tokens, new = prompt("p", room), prompt("q", gone)
    for each in (tokens, new):
        a.engine.serve(each)
    a.until("made room", lambda status: status.arena.evicted_blocks == gone)
    b.until_sees(a).until_knows(tokens)

    # of a prompt whose end made room at another member, and of one that goes on otherwise from where it was cut
    assert serve(b, tokens) == Served(pool=kept, computed=gone)
    assert b.status().misses == {"evicted": gone}
    other = [*tokens[: kept * BLOCK_TOKENS], *prompt("other", 2)]
    assert serve(b, other) == Served(pool=kept, computed=2)
    assert b.status().misses == {"evicted": gone, "never_published": 2}


def test_of_a_prompt_whose_first_block_nobody_has_any_more_the_own_arena_knows_what_made_room(pool: AgentPool) -> None:
    node = pool.node("a", arenaBytes=2 * MIB, **NO_WARM_UP).start().attach(row_bytes=BIG, rows=64)
    node.until("the verdict", lambda status: status.probe.state not in ("", "pending"))
    room = SLOTS - node.status().arena.blocks
    for name in ("first", "second"):
        assert serve(node, prompt(name, room)) == Served(computed=room)
    node.until("made room", lambda status: status.arena.evicted_blocks == room)
    (head, *_) = engine_keys(prompt("first", room))
    wait_for("it is ruled out", lambda: node.engine.side.heads.rule_out(head, time.monotonic()), WAIT_SECONDS, 0.005)
    before = node.status()
    assert before.misses == {"never_published": 2 * room}
    assert serve(node, prompt("first", room)) == Served(computed=room)
    after = node.status()
    assert after.misses == {"never_published": 2 * room, "evicted": room}
    ruled_out = [status.counters.get("lookups_ruled_out", 0) for status in (before, after)]
    assert ruled_out[1] == ruled_out[0] + 1
