"""Engines whose drafts come from a model with a KV cache of its own share it with the rest, and answer as ever.

The draft models are the model itself, so that what they propose is taken as long as they have read what it has read:
how many proposals are taken tells whether the draft's part of the blocks came, too.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from engine.forged import Forge, ForgedEngine
from engine.measured import BLOCK, by_source, settle, small_prompt, until_told
from engine.place import Place, member_instead
from replica import MIB, Pool, Replica, Tools, wait_for

MAKE = Path(__file__).parent / "make_draft_models.py"
BLOCKS, TAIL = 2, 5
COMPUTED = by_source(computed=BLOCKS * BLOCK + TAIL)
LOADED = by_source(pool=BLOCKS * BLOCK, computed=TAIL)


class Drafting(Place):
    """One whose engine drafts."""

    def ask(self, tokens: list[int]) -> tuple[dict[str, int], tuple[str, ...], int]:
        """Prompt tokens by source, the answer, and how many proposals of the draft were taken for it."""
        before = self.engine.do("accepted")
        found = self.engine.ask(tokens)
        return found.tokens, found.answer[0], self.engine.do("accepted") - before


@pytest.fixture(scope="module")
def places(
    tools: Tools, forge: Forge, small_models: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Drafting]]:
    """A and B draft with the model itself, whose layers lie in the same blocks; W with layers that look at a window and
    are a KV-cache group of their own; E with an EAGLE head."""
    folder, model = tmp_path_factory.mktemp("drafts"), str(small_models[0])
    forge.run(MAKE, model, folder / "models")
    methods = {
        "A": ("draft_model", model),
        "B": ("draft_model", model),
        "W": ("draft_model", str(folder / "models" / "window")),
        "E": ("eagle", str(folder / "models" / "eagle")),
    }
    pool = Pool(tools, folder / "pool", host_pool_bytes=32 * MIB, agent={"arenaBytes": 64 * MIB})
    replicas = [pool.replica(name) for name in methods]
    with ThreadPoolExecutor() as threads:
        list(threads.map(Replica.start_agent, replicas))
    made = {}
    try:
        for replica in replicas:
            method, draft = methods[replica.name]
            options: dict[str, Any] = {"method": method, "model": draft, "num_speculative_tokens": 3}
            engine = ForgedEngine(forge, replica, small_models[0], speculative_config=options)
            made[replica.name] = Drafting(replica, engine)
        for place in made.values():
            place.engine.until_ready()
        yield made
    finally:
        for place in made.values():
            place.engine.close()
        pool.stop()


@pytest.mark.parametrize("altered", [False, True])
def test_a_drafts_part_of_a_block_comes_with_it_and_no_answer_hangs_on_it(
    places: dict[str, Drafting], altered: bool
) -> None:
    a, b = places["A"], places["B"]
    tokens = small_prompt(100 + altered, BLOCKS * BLOCK + TAIL)
    known = {block.key for block in a.counted()}
    counted, answer, taken = a.ask(tokens)
    assert counted == COMPUTED
    assert taken > 4, "the draft is the model itself"

    def chain() -> list[bytes]:
        found = [block for block in a.counted() if block.key not in known]
        return [block.key for block in sorted(found, key=lambda block: block.depth)]

    wait_for("its blocks", lambda: len(chain()) == BLOCKS, 20)
    with member_instead(a, b, chain()) as member:
        if altered:
            member.alter(chain()[0])  # from the middle on: where the draft's layers begin
        found = b.ask(tokens)
        assert member.served == BLOCKS
    assert found[:2] == (LOADED, answer)
    assert (found[2] == taken) is not altered


def test_a_draft_with_groups_of_its_own_attaches_and_shares_nothing(places: dict[str, Drafting]) -> None:
    w = places["W"]
    tokens = small_prompt(110, BLOCKS * BLOCK + TAIL)
    for _ in range(2):
        assert w.ask(tokens)[0] == COMPUTED
        w.engine.forget()
    status = settle(w.replica)
    assert len(status["format_fields"]["groups"]) == 2
    assert (status["attached"], status["state"], status["reason"]) == (True, "Ready(degraded)", "draft_missing")
    assert (status["misses"], status["arena"]["blocks"]) == ({"draft_missing": 2 * BLOCKS}, 0)


def test_what_an_eagle_head_has_read_comes_with_the_blocks_too(places: dict[str, Drafting]) -> None:
    e = places["E"]
    tokens = small_prompt(120, BLOCKS * BLOCK + TAIL)
    first = e.ask(tokens)
    assert first[0] == COMPUTED
    wait_for("its blocks", lambda: len(e.counted()) == BLOCKS, 20)
    until_told(e.replica)
    e.engine.forget()
    assert e.ask(tokens)[:2] == (LOADED, first[1])
