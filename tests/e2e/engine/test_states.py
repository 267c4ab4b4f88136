"""A model with recurrent states: a request goes on from one state and the blocks before it, or computes everything."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine.forged import Forge, ForgedEngine
from engine.measured import Outcome, by_source, moved, settle, small_prompt
from engine.place import Place, member_instead
from replica import MIB, Pool, Replica, Tools, wait_for

from kvpool_agent.policy.heat import HotBlock

MAKE = Path(__file__).parent / "make_state_model.py"
BLOCK = 32  # the engine's own: of such a model it is ours, too
BLOCKS, TAIL = 4, 9
LENGTH = BLOCKS * BLOCK + TAIL
PROMPT_PARTS = (BLOCKS - 1, BLOCKS)  # boundaries at which the engine keeps a state


@dataclass(frozen=True)
class Kind:
    """Of states: what the engine is given, how many of its KV-cache groups have some, and what the format says of
    them."""

    name: str
    options: dict[str, Any]
    groups: int
    word: str
    shapes: list[list[int]]
    dtypes: list[str]


GATED_DELTA = Kind(
    "gated_delta", {"dtype": "bfloat16"}, 1, "GDN_ATTN", [[3, 384], [1, 128, 128]], ["bfloat16", "float32"]
)  # fmt: skip
MAMBA2 = Kind(
    "mamba2", {"max_num_batched_tokens": BLOCK, "max_num_seqs": 4}, 2,
    "MAMBA2", [[3, 288], [4, 64, 16]], ["float32", "float32"],
)  # fmt: skip


@dataclass(frozen=True)
class Stateful(Place):
    """One whose model has states."""

    kind: Kind

    def ask(self, tokens: list[int], salt: str = "") -> Outcome:
        """With the log-probabilities of the 20 likeliest tokens at each place."""
        return self.engine.ask(tokens, salt=salt, likeliest=20)


@pytest.fixture(scope="module")
def places(
    request: pytest.FixtureRequest, tools: Tools, forge: Forge, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Stateful, Stateful]]:
    """Replicas A and B of a model with states of this kind."""
    kind, folder = request.param, tmp_path_factory.mktemp("states")
    pool = Pool(tools, folder / "pool", host_pool_bytes=32 * MIB, agent={"arenaBytes": 64 * MIB})
    replicas = [pool.replica(name) for name in "AB"]
    with ThreadPoolExecutor() as threads:
        made = threads.submit(forge.run, MAKE, kind.name, folder / "model")
        list(threads.map(Replica.start_agent, replicas))
        made.result()
    options = {**kind.options, "enable_prefix_caching": True}
    engines = [ForgedEngine(forge, replica, folder / "model", **options) for replica in replicas]
    try:
        for engine in engines:
            engine.until_ready()
        a, b = (Stateful(replica, engine, kind) for replica, engine in zip(replicas, engines, strict=True))
        yield a, b
    finally:
        for engine in engines:
            engine.close()
        pool.stop()


@dataclass(frozen=True)
class Served:
    """What A answered from each boundary, by itself, and the blocks that it has stored of it: full attention's in
    order, and by boundary the states, one of each group."""

    answers: dict[int, Outcome]
    full: list[bytes]
    states: dict[int, list[bytes]]


def served(place: Stateful, tokens: list[int]) -> Served:
    before = len(place.counted())
    cold = place.ask(tokens, salt="another")
    wait_for("the blocks under another name", lambda: len(place.counted()) == before + BLOCKS + place.kind.groups, 20)
    known = {block.key for block in place.counted()}
    assert place.ask(tokens[: (BLOCKS - 1) * BLOCK + TAIL]).tokens == by_source(computed=(BLOCKS - 1) * BLOCK + TAIL)
    answers = {0: cold, BLOCKS - 1: place.ask(tokens), BLOCKS: place.ask(tokens)}
    for boundary, outcome in answers.items():
        assert outcome.tokens == by_source(device=boundary * BLOCK, computed=LENGTH - boundary * BLOCK)
    assert all(sharp(outcome) for outcome in answers.values())

    def own() -> tuple[list[bytes], dict[int, list[bytes]]]:
        return by_kind([block for block in place.counted() if block.key not in known])

    def stored() -> bool:
        full, states = own()
        return len(full) == BLOCKS and {n: len(of) for n, of in states.items()} == dict.fromkeys(
            PROMPT_PARTS, place.kind.groups
        )

    wait_for("all blocks of A", stored, 20)
    return Served(answers, *own())


def sharp(outcome: Outcome) -> bool:
    """Whether the model's likeliest tokens are told apart, so that equal probabilities mean something."""
    return all(max(top.values()) - min(top.values()) > 1 for top in outcome.answer[1])


def by_kind(blocks: list[HotBlock]) -> tuple[list[bytes], dict[int, list[bytes]]]:
    """Keys of full attention in order, and of the states, which have no parents, by their boundary."""
    linked = {block.depth: block for block in blocks if block.parent}
    if 1 not in linked:
        return [], {}
    full = [linked[1].parent, *(linked[depth].key for depth in sorted(linked))]
    states: dict[int, list[bytes]] = {}
    for block in blocks:
        if block.key not in full:
            states.setdefault(block.depth + 1, []).append(block.key)
    return full, states


@dataclass(frozen=True)
class Offer:
    """The boundaries whose states a member holds beside all of full attention, and the boundary, in blocks, that comes
    of it; lacks_one: but for the last group's last one; altered: that one has other bytes."""

    states: tuple[int, ...]
    boundary: int
    lacks_one: bool = False
    altered: bool = False


ALL, ALTERED = Offer(PROMPT_PARTS, BLOCKS), Offer((BLOCKS,), BLOCKS, altered=True)


@pytest.mark.parametrize(
    ("places", "offer"),
    [
        pytest.param(GATED_DELTA, ALL, id="gated delta: all"),
        pytest.param(GATED_DELTA, ALTERED, id="gated delta: the last altered"),
        pytest.param(MAMBA2, ALL, id="mamba2: all"),
        pytest.param(MAMBA2, ALTERED, id="mamba2: the last altered"),
        pytest.param(MAMBA2, Offer((BLOCKS,), BLOCKS), id="mamba2: the last alone"),
        pytest.param(MAMBA2, Offer(PROMPT_PARTS, BLOCKS - 1, lacks_one=True), id="mamba2: one of the last missing"),
        pytest.param(MAMBA2, Offer((), 0), id="mamba2: none"),
    ],
    indirect=["places"],
)
def test_a_continuation_from_another_replicas_state_equals_one_from_a_local_prefix_hit(
    places: tuple[Stateful, Stateful], offer: Offer, request: pytest.FixtureRequest
) -> None:
    a, b = places
    tokens = small_prompt(sum(request.node.name.encode()), LENGTH)
    of_a = served(a, tokens)
    states = [key for boundary in offer.states for key in of_a.states[boundary]]
    held = [*of_a.full, *(states[:-1] if offer.lacks_one else states)]
    with member_instead(a, b, held) as member:
        if offer.altered:
            member.alter(states[-1])
        before = settle(b.replica)
        found = b.ask(tokens)
        after = settle(b.replica)
        loaded = offer.boundary * BLOCK
        assert found.tokens == by_source(pool=loaded, computed=LENGTH - loaded)
        rows = offer.boundary + a.kind.groups if offer.boundary else 0
        row = after["format_fields"]["row_bytes"]
        assert member.served == rows
        came = [one - other for one, other in zip(moved(after, "demand_in"), moved(before, "demand_in"), strict=True)]
        assert came == [rows, rows * row]
        misses = {reason: n - before["misses"].get(reason, 0) for reason, n in after["misses"].items()}
        missed = BLOCKS - offer.boundary
        assert {reason: n for reason, n in misses.items() if n} == ({"state_missing": missed} if missed else {})
        assert (found.answer == of_a.answers[offer.boundary].answer) is not offer.altered


@pytest.mark.parametrize("places", [GATED_DELTA, MAMBA2], ids=["gated delta", "mamba2"], indirect=True)
def test_the_format_says_what_the_states_are(places: tuple[Stateful, Stateful]) -> None:
    fields = places[0].replica.status()["format_fields"]
    assert fields["block_tokens"] == BLOCK
    kind = places[0].kind
    backend, *states = fields["states"]
    page = fields["row_bytes"] // 2
    assert (backend, states) == ("TRITON", [[kind.word, kind.shapes, kind.dtypes, page]] * kind.groups)
