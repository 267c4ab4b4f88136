"""Agents load where that is faster than computing, and compute where it is not, as the link between them changes.

Computing takes a time that the stand-in engine sleeps, the link is paced by the test: the two lie so far apart on both
sides that a loaded machine changes nothing.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_pool import AgentPool, Node
from standin_engine import Served, prompt
from throttled import ThrottledLink

ROW_BYTES, BLOCKS, PROMPTS = 128 << 10, 16, 28  # 2 MiB for a prompt, all of them in one arena
TOKEN_SECONDS = 0.03  # 2 s for a prompt
SLOW = 256e3  # 8 s for a prompt
OFTEN = "import kvpool_agent.policy.tries as tries; tries.TRY_SECONDS = tries.LONGEST_TRY_SECONDS = 0.3"


@pytest.fixture
def link(pool: AgentPool) -> Iterator[ThrottledLink]:
    """From member a, which computes in no time, to whoever reads `seeds`."""
    a = pool.node("a", arenaBytes=64 << 20).start().attach(row_bytes=ROW_BYTES)
    for i in range(PROMPTS):
        a.engine.serve(prompt(f"p{i}", BLOCKS))
    made = ThrottledLink(a.replica.peer_port)
    yield made
    made.close()


def asker(pool: AgentPool, link: ThrottledLink, tmp_path: Path, mode: str = "Measured") -> Node:
    """A member that reaches a by the link alone, and has computed a prompt."""
    seeds = tmp_path / "seeds"
    seeds.write_text(f"{link.address}\n")
    options = {"members": {"file": str(seeds)}, "loading": {"mode": mode}, "prewarm": {"maxBytes": 0}}
    b = pool.node("b", arenaBytes=64 << 20, **options).patched(OFTEN)
    b.start().attach(row_bytes=ROW_BYTES, token_seconds=TOKEN_SECONDS)
    b.until_sees(pool.nodes[0]).until_knows(*(prompt(f"p{i}", BLOCKS) for i in range(PROMPTS)))
    for i in range(2):
        assert b.engine.serve(prompt(f"own{i}", BLOCKS)) == Served(computed=BLOCKS)
    return b


def ask(b: Node, i: int) -> Served:
    served = b.engine.serve(prompt(f"p{i}", BLOCKS))
    assert served.equal
    return served


def missed(b: Node) -> dict[str, int]:
    return {word: blocks for word, blocks in b.status().misses.items() if word != "never_published"}


def test_admission_switches_to_computing_when_the_link_is_slow_and_back_when_it_is_fast(
    pool: AgentPool, link: ThrottledLink, tmp_path: Path
) -> None:
    b = asker(pool, link, tmp_path)
    for i in (1, 2):
        assert ask(b, i) == Served(pool=BLOCKS)
    assert missed(b) == {}

    link.bytes_per_second = SLOW
    late = ask(b, 3)  # as fast as ever, as far as is known: what has come by the soft deadline is kept
    assert 0 < late.pool < BLOCKS and late.pool + late.computed == BLOCKS
    assert missed(b) == {"deadline": late.computed}
    for i in (4, 5):
        assert ask(b, i) == Served(computed=BLOCKS)
    assert missed(b) == {"deadline": late.computed, "too_slow": 2 * BLOCKS}

    link.bytes_per_second = 0.0
    i = next(i for i in range(6, PROMPTS) if ask(b, i) == Served(pool=BLOCKS))
    counters = b.status().counters
    assert counters["loads_refused"] == 2 + (i - 6)
    assert 1 <= counters["loads_tried"] <= counters["loads_refused"]
    assert b.status().misses["too_slow"] == BLOCKS * counters["loads_refused"]


@pytest.mark.parametrize("mode", ["Always", "Never"])
def test_a_pool_that_always_or_never_loads_does_so_however_slow(
    pool: AgentPool, link: ThrottledLink, tmp_path: Path, mode: str
) -> None:
    b = asker(pool, link, tmp_path, mode)
    link.bytes_per_second = 2 * SLOW
    before = missed(b).get("loading_off", 0)
    expected = Served(pool=BLOCKS) if mode == "Always" else Served(computed=BLOCKS)
    assert [ask(b, i) for i in (1, 2)] == [expected] * 2
    assert missed(b) == ({} if mode == "Always" else {"loading_off": before + 2 * BLOCKS})
