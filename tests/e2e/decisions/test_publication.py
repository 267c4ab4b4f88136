"""A pool says what its members tell each other of: all that they hold, of prompts to some depth, or nothing."""

from agent_pool import AgentPool
from standin_engine import BLOCK_TOKENS, Served, prompt

BLOCKS, DEPTH = 10, 4


def test_nobody_loads_from_a_member_that_tells_of_nothing_and_it_loads_from_others(pool: AgentPool) -> None:
    a = pool.joined("a", publication={"policy": "Never"})
    b = pool.joined("b")
    own, other = prompt("own", BLOCKS), prompt("other", BLOCKS)
    a.engine.serve(own)
    a.until_blocks(BLOCKS)
    b.engine.serve(other)
    a.until_sees(b).until_knows(other)
    assert a.engine.serve(other) == Served(pool=BLOCKS)
    b.until("knows it", lambda s: [p for p in s.peers if p.live and p.format == s.format and not p.blocks])
    assert b.engine.serve(own) == Served(computed=BLOCKS)
    assert b.status().misses == {"never_published": 2 * BLOCKS}
    a.engine.forget()
    assert a.engine.serve(own) == Served(pool=BLOCKS)  # to its own engine it gives as ever
    c = pool.joined("c")  # a newcomer is warmed by those alone that tell of what they hold
    status = c.until_state("Ready(warm)")
    assert status.arena.blocks >= BLOCKS
    assert "prewarm_out" not in a.status().transfers and "demand_out" not in a.status().transfers


def test_of_a_prompt_others_are_told_to_the_depth_that_the_pool_says(pool: AgentPool) -> None:
    a = pool.joined("a", publication={"maxDepthTokens": DEPTH * BLOCK_TOKENS + 1})  # in whole blocks
    b = pool.node("b", prewarm={"maxBytes": 0}).start().attach()
    tokens = prompt("p", BLOCKS)
    a.engine.serve(tokens)
    a.until_blocks(BLOCKS)
    b.until_sees(a).until_knows(tokens)
    assert b.engine.serve(tokens) == Served(pool=DEPTH, computed=BLOCKS - DEPTH)
    assert b.status().misses == {"never_published": BLOCKS - DEPTH}
    a.engine.forget()
    assert a.engine.serve(tokens) == Served(pool=BLOCKS)
    c = pool.joined("c", members={"file": str(only(pool, a))})
    status = c.until("warmed", lambda s: s.state.startswith("Ready"))
    assert status.warm.planned_blocks <= DEPTH


def only(pool: AgentPool, node: object) -> object:
    """A file of members with this one alone."""
    path = pool.members.with_name("only")
    path.write_text(f"127.0.0.1:{node.replica.peer_port}\n")  # type: ignore[attr-defined]
    return path
