"""Models with recurrent states: a boundary takes its state and the blocks of full attention before it, or nothing."""

from collections.abc import Iterator

import pytest
from agent_pool import AgentPool, Node
from standin_engine import BLOCK_TOKENS, RECURRENT, Served, engine_keys, prompt

from kvpool_contract.status import Transfer

ROW = 4096
BLOCKS = 6


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    """Two members whose engines have a model with recurrent states."""
    made = AgentPool(tmp_path_factory.mktemp("states"), patient=True, arenaBytes=32 << 20)
    nodes = made.all_started("ab")
    for node in nodes:
        node.attach(groups=RECURRENT)
    for one, other in (nodes, nodes[::-1]):
        one.until_sees(other)
    yield nodes
    made.stop()


class Counted:
    """What a member counts from now on."""

    def __init__(self, node: Node) -> None:
        self._node, self._before = node, node.status()

    def came(self) -> tuple[int, int]:
        """(blocks, bytes) that the other member has sent."""
        nothing = Transfer(0, 0)
        now, then = (one.transfers.get("demand_in", nothing) for one in (self._node.status(), self._before))
        return now.blocks - then.blocks, now.bytes - then.bytes

    def misses(self) -> dict[str, int]:
        now = self._node.status().misses
        return {
            word: n - self._before.misses.get(word, 0) for word, n in now.items() if n != self._before.misses.get(word)
        }

    def until_stored(self, blocks: int) -> None:
        before = self._before.arena.blocks
        self._node.until("stored", lambda status: status.arena.blocks - before == blocks)


@pytest.mark.parametrize(
    ("states", "boundary"),
    [
        pytest.param([5], 6, id="the last alone"),
        pytest.param([0, 1, 2, 3, 4, 5], 6, id="all"),
        pytest.param([1, 3], 4, id="none at the end"),
        pytest.param([], 0, id="none"),
    ],
)
@pytest.mark.parametrize("at", ["peer", "here"])
def test_the_last_state_that_is_held_is_the_boundary_and_without_one_nothing_moves(
    agents: list[Node], at: str, states: list[int], boundary: int
) -> None:
    a, b = agents
    tokens = prompt(f"{at} {states}", BLOCKS)
    keys = engine_keys(tokens, RECURRENT[0])
    stored = Counted(a)
    a.engine.withheld = {key for i, key in enumerate(keys) if i not in states}
    a.engine.serve(tokens)
    stored.until_stored(BLOCKS + len(states))
    a.engine.forget()
    asker = b if at == "peer" else a
    counted = Counted(asker)
    rows = boundary + 1 if boundary else 0
    served = asker.until_knows(tokens).engine.serve(tokens)
    assert served == Served(pool=boundary, computed=BLOCKS - boundary, rows=rows)
    assert counted.came() == ((rows, rows * ROW) if at == "peer" else (0, 0))
    assert counted.misses() == ({"state_missing": BLOCKS - boundary} if boundary < BLOCKS else {})


def test_a_prompt_that_ends_with_a_block_goes_on_one_block_earlier_and_what_it_can_not_use_is_not_moved(
    agents: list[Node],
) -> None:
    a, b = agents
    tokens = prompt("exactly", BLOCKS)
    stored, counted = Counted(a), Counted(b)
    a.engine.withheld = set()
    a.engine.serve(tokens)
    stored.until_stored(2 * BLOCKS)
    exactly = tokens[: BLOCKS * BLOCK_TOKENS]
    assert b.until_knows(tokens).engine.serve(exactly) == Served(pool=BLOCKS - 1, computed=1, rows=BLOCKS)
    assert counted.came() == (BLOCKS, BLOCKS * ROW)
    assert counted.misses() == {"state_missing": 1}


def test_of_an_unknown_prompt_nothing_is_said_of_states(agents: list[Node]) -> None:
    _, b = agents
    counted = Counted(b)
    assert b.engine.serve(prompt("nobody's", 3)).computed == 3
    assert counted.misses() == {"never_published": 3}
