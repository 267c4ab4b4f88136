"""A pool says what its members tell each other of: all that they hold, of prompts to some depth, of declared
beginnings alone, or nothing."""

from agent_pool import AgentPool, until_in_force
from standin_engine import BLOCK_TOKENS, Served, hash_fields, prompt
from standin_http import token_ids

from kvpool_contract.status import Declared

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


SYSTEM = "You are a helpful assistant.\n"  # with the token that begins each prompt 30: seven blocks, and two tokens


def test_of_declared_prefixes_alone_others_are_told_and_of_their_whole_blocks_alone(pool: AgentPool) -> None:
    fields = hash_fields()
    ids, later = numbered(1000, 3), numbered(2000, BLOCKS)
    a = pool.node("a", publication={"policy": "Declared"}, declaredPrefixes=[{"text": SYSTEM}, {"tokenIds": ids}])
    a.start().attach(fields=fields, probe=True)
    b = pool.node("b", prewarm={"maxBytes": 0}).start().attach(fields=fields)
    a.until("knows the prefixes' blocks", lambda s: s.declared == Declared(2, 2, 7 + 3) and s.probe.blocks)
    begins, own = token_ids(SYSTEM), prompt("own", BLOCKS)
    first, second = begins + own, ids + own
    for tokens in (first, second, own, later):
        a.engine.serve(tokens)
    a.until_blocks(17 + 13 + BLOCKS + BLOCKS)
    b.until_sees(a).until_knows(first, second)
    b.until("has been told", lambda s: s.directory.entries == 7 + 3)
    assert b.status().directory.heads == 2  # of the four prompts
    # a prompt that differs in the fourth block's last token has the three blocks before
    differs = [*begins[: 4 * BLOCK_TOKENS - 1], 9, *begins[4 * BLOCK_TOKENS :], *own]
    assert b.engine.serve(differs) == Served(pool=3, computed=14)
    assert b.engine.serve(first) == Served(host=3, pool=4, computed=10)
    assert b.engine.serve(second) == Served(pool=3, computed=10)
    assert b.engine.serve(own) == Served(computed=BLOCKS)
    assert b.status().misses == {"never_published": 14 + 10 + 10 + BLOCKS}
    a.engine.forget()
    assert a.engine.serve(first) == Served(pool=17)  # to its own engine it gives as ever

    until_in_force(a, declaredPrefixes=[{"tokenIds": later[: 4 * BLOCK_TOKENS]}])  # in the agent that runs
    a.until("knows others", lambda s: s.declared == Declared(1, 1, 4))
    b.until("has been told", lambda s: s.directory.entries == 4)
    b.until_knows(later)
    assert b.engine.serve(later) == Served(pool=4, computed=BLOCKS - 4)
    c = pool.node("c", members={"file": str(only(pool, a))}).start().attach(fields=fields)
    assert c.until("warmed", lambda s: s.state.startswith("Ready")).warm.planned_blocks == 4


def numbered(first: int, blocks: int) -> list[int]:
    """Token ids of so many blocks, as a vocabulary has them."""
    return list(range(first, first + blocks * BLOCK_TOKENS))


def only(pool: AgentPool, node: object) -> object:
    """A file of members with this one alone."""
    path = pool.members.with_name("only")
    path.write_text(f"127.0.0.1:{node.replica.peer_port}\n")  # type: ignore[attr-defined]
    return path
