"""Every block that is looked up is loaded or missed for one reason: the sums agree after each request."""

import random

import pytest
from agent_pool import AgentPool, Node
from standin_engine import prompt

ROWS, ROW_BYTES = 24, 64 << 10


def agrees(node: Node) -> dict[str, int]:
    """The misses, which with what was loaded are what was looked up."""
    status = node.status()
    looked_up, loaded = (status.counters.get(word, 0) for word in ("looked_up_blocks", "loaded_blocks"))
    assert loaded + sum(status.misses.values()) == looked_up, status.misses
    return status.misses


@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_looked_up_is_what_was_loaded_and_what_was_missed_after_every_request(
    pool: AgentPool, seed: int
) -> None:
    chance = random.Random(seed)
    # arenas of some 28 blocks, host pools of 24: prompts push each other out everywhere
    nodes = [
        pool.node(name, arenaBytes=2 << 20, prewarm={"maxBytes": 0}).start().attach(rows=ROWS, row_bytes=ROW_BYTES)
        for name in "ab"
    ]
    nodes[0].until_sees(nodes[1])
    nodes[1].until_sees(nodes[0])
    for _ in range(60):
        node = chance.choice(nodes)
        if chance.random() < 0.3:
            node.engine.forget()
        name, blocks = f"p{chance.randrange(6)}", chance.choice((0, 1, 4, 9, 16))
        assert node.engine.serve(prompt(name, blocks)).equal
        agrees(node)
    found = agrees(nodes[0]) | agrees(nodes[1])
    assert {"never_published", "no_room"} <= set(found), found
