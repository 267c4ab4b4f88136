"""Too little device memory and a small host pool: requests make way for each other, and answers stay what they were."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine.forged import NO_BLOCK, Forge, ForgedEngine
from engine.measured import BLOCK, by_source, settle, small_prompt, until_sees
from replica import MIB, Pool, Replica, Tools

FOLDER = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Case:
    """A request of so many blocks of ours, answered with so many tokens; the rows of the host pool are half as many
    again as its blocks in all groups, and the device holds two requests, which outgrow it while they are answered."""

    blocks: int
    answer: int
    rows: int
    row_bytes: int
    options: dict[str, Any]
    device: int
    block: int = BLOCK

    @property
    def half(self) -> int:
        return self.blocks // 2

    def tokens(self, blocks: int) -> int:
        """A prompt that goes on for a little after so many blocks."""
        return blocks * self.block + 9


PLAIN = Case(6, 100, 9, 256 << 10, {}, 54)
# the windows reach into two blocks each; prompts are computed in small parts, for which they need few more
HYBRID = Case(
    12, 160, 24, 128 << 10, {"max_model_len": 1800, "max_num_batched_tokens": 64, "max_num_seqs": 4}, 130
)  # fmt: skip
# a boundary takes a state of each of two groups
STATES = Case(
    14, 200, 24, 64 << 10,
    {"max_model_len": 704, "max_num_seqs": 4, "enable_prefix_caching": True, "states_at_ends_of_steps": True},
    41, block=32,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Place:
    replica: Replica
    engine: ForgedEngine
    case: Case


@pytest.fixture(scope="module", params=[PLAIN, HYBRID, STATES], ids=["full attention", "hybrid", "states"])
def places(
    request: pytest.FixtureRequest,
    forge: Forge,
    tools: Tools,
    small_models: list[Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[Place]]:
    """A with room for all, and B with little."""
    case, folder, model = request.param, tmp_path_factory.mktemp("pressure"), small_models[0]
    if case is not PLAIN:
        model = folder / "model"
        script, of = ("make_hybrid_model.py", tools.model) if case is HYBRID else ("make_state_model.py", "mamba2")
        forge.run(FOLDER / script, of, model)
    pool = Pool(
        tools, folder / "pool", block_tokens=case.block, host_pool_bytes=32 * MIB, agent={"arenaBytes": 64 * MIB}
    )  # fmt: skip
    made = []
    try:
        for name, device in (("A", {}), ("B", {"num_gpu_blocks_override": case.device})):
            replica = pool.replica(name)
            replica.start_agent()
            made.append(Place(replica, ForgedEngine(forge, replica, model, **case.options, **device), case))
            pool.host_pool_bytes = case.rows * case.row_bytes
        for place in made:
            place.engine.until_ready()
        yield made
    finally:
        for place in made:
            place.engine.close()
        pool.stop()


def test_requests_that_make_way_for_each_other_are_answered_as_ever_and_counted_once(places: list[Place]) -> None:
    a, b = places
    case = a.case
    prompts = [small_prompt(n, case.tokens(case.blocks)) for n in (11, 12, 13)]

    def answers(place: Place, *asked: list[int], tokens: int = case.answer) -> dict[str, Any]:
        found: dict[str, Any] = place.engine.do("together", prompts=asked, answer_tokens=tokens)
        place.engine.ask(NO_BLOCK)
        return found

    for tokens in prompts:  # windows and states are kept where a prompt ended: so one more boundary in the middle
        answers(a, tokens[: case.tokens(case.half)], tokens=1)
    expected = [answers(a, tokens)["answers"][0] for tokens in prompts]
    settle(a.replica)
    until_sees(b.replica, a.replica)
    (attached,) = (event for event in b.replica.status()["events"] if event["word"] == "attached")
    assert attached["detail"]["rows"] == case.rows
    found = answers(b, *prompts)
    assert found["answers"] == expected
    assert found["preemptions"] > 0
    status = settle(b.replica)
    hits, misses = status["hits"], status["misses"]
    assert sum(hits[f"{word}_blocks"] for word in ("computed", "local", "shared")) == len(prompts) * case.blocks
    assert misses.keys() <= {"no_room", "evicted"}
    counted = sum(misses.values())
    assert counted == hits["computed_blocks"] if case is PLAIN else counted >= hits["computed_blocks"]
    # and nothing is left behind: what fits is loaded as ever
    b.engine.forget()
    one = answers(b, prompts[0][: case.tokens(case.half)], tokens=1)
    assert one["tokens"] == by_source(pool=case.half * case.block, computed=9)
