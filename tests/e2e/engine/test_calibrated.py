"""A real engine that is asked what computing costs before its first request. Part of `make soak`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine.forged import Forge, forged_pool
from engine.measured import BLOCK, ask, by_source, prompt
from replica import Pool, Tools

from kvpool_agent.flows.calibrate import LENGTHS, ROUNDS

TAKEN = [tokens for tokens in LENGTHS if tokens < 2048]  # the model ends there, with the token that is generated


@pytest.fixture
def pool(forge: Forge, tools: Tools, tmp_path: Path) -> Iterator[Pool]:
    made = forged_pool(forge, tools, tmp_path, agent={"loading": {"mode": "Measured", "calibrationSeconds": 300.0}})
    yield made
    made.stop()


def test_what_computing_costs_a_real_engine_is_known_before_its_first_request(pool: Pool) -> None:
    replica = pool.replica("A")
    replica.start_agent()
    replica.start_engine()
    replica.wait_engine()
    replica.wait_ready()
    status = replica.status()
    assert (status["calibrated"]["ended_by"], status["calibrated"]["prompts"]) == ("complete", ROUNDS * len(TAKEN))
    recompute = status["costs"]["recompute"]
    assert (recompute["count"], recompute["longest"]) == (ROUNDS * len(TAKEN), TAKEN[-1])
    assert recompute["linear"] > 0
    # in nobody's account, and of its rows the engine's host tier has none: the probe's block alone was stored
    assert (status["hits"]["computed_blocks"], status["misses"], status["arena"]["blocks"]) == (0, {}, 0)
    assert replica.prompt_tokens()["computed"] >= ROUNDS * sum(TAKEN)
    assert ask(replica, prompt(9950, BLOCK + 3)).tokens == by_source(computed=BLOCK + 3)
