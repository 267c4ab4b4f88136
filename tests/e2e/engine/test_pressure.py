"""Too little device memory and a small host pool: requests make way for each other, and answers stay what they were."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine.forged import NO_BLOCK, Forge, ForgedEngine
from engine.measured import BLOCK, by_source, settle, small_prompt
from replica import MIB, Pool, Replica, Tools, wait_for

MAKE_HYBRID = Path(__file__).parent / "make_hybrid_model.py"


@dataclasses.dataclass(frozen=True)
class Case:
    """A request of so many blocks, answered with so many tokens; the rows of the host pool are half as many again as
    its blocks in all groups, and the device holds two requests, which outgrow it while they are answered. layers: that
    share a row."""

    blocks: int
    answer: int
    rows: int
    layers: int
    device: dict[str, int]
    options: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def half(self) -> int:
        return self.blocks // 2

    @property
    def host_pool_bytes(self) -> int:
        """Of each token keys and values, two heads of 32 numbers of four bytes."""
        return self.rows * self.layers * BLOCK * 2 * 2 * 32 * 4


PLAIN = Case(6, 100, 9, 4, {"num_gpu_blocks_override": 54})
# the windows reach into two blocks each; prompts are computed in small parts, for which they need few more
HYBRID = Case(
    12, 160, 24, 2, {"num_gpu_blocks_override": 130},
    {"max_model_len": 1800, "max_num_batched_tokens": 64, "max_num_seqs": 4},
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Place:
    replica: Replica
    engine: ForgedEngine
    case: Case


@pytest.fixture(scope="module", params=[PLAIN, HYBRID], ids=["full attention", "hybrid"])
def places(
    request: pytest.FixtureRequest,
    forge: Forge,
    tools: Tools,
    small_models: list[Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[Place]]:
    """A with room for all, and B with little."""
    case, folder, model = request.param, tmp_path_factory.mktemp("pressure"), small_models[0]
    if case is HYBRID:
        model = folder / "model"
        forge.run(MAKE_HYBRID, tools.model, model)
    pool = Pool(tools, folder / "pool", host_pool_bytes=32 * MIB, agent={"arenaBytes": 64 * MIB})
    made = []
    try:
        for name, device in (("A", {}), ("B", case.device)):
            replica = pool.replica(name)
            replica.start_agent()
            made.append(Place(replica, ForgedEngine(forge, replica, model, **case.options, **device), case))
            pool.host_pool_bytes = case.host_pool_bytes
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
    prompts = [small_prompt(n, case.blocks * BLOCK + 9) for n in (11, 12, 13)]

    def answers(place: Place, *asked: list[int], tokens: int = case.answer) -> dict[str, Any]:
        found: dict[str, Any] = place.engine.do("together", prompts=asked, answer_tokens=tokens)
        place.engine.ask(NO_BLOCK)
        return found

    for tokens in prompts:  # windows are kept where a prompt ended: so there is a boundary in the middle, too
        answers(a, tokens[: case.half * BLOCK + 9], tokens=1)
    expected = [answers(a, tokens)["answers"][0] for tokens in prompts]
    settle(a.replica)

    def sees() -> bool:
        now = a.replica.status()
        return any((p["live"], p["blocks"]) == (True, now["arena"]["blocks"]) for p in b.replica.status()["peers"])

    wait_for("B sees A", sees, 20)
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
    one = answers(b, prompts[0][: case.half * BLOCK + 9], tokens=1)
    assert one["tokens"] == by_source(pool=case.half * BLOCK, computed=9)
