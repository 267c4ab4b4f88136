"""Recorded traffic through the arena's own policies gives the hit rates that other programs found on it.

`make test` does the two Mooncake traces and one capacity of Claude Code; KVPOOL_WHOLE_TRACES=1, as in `make soak`, all.
"""

import json
import os

import pytest
from click.testing import CliRunner
from kvcache_sim.plan import build_execution_plan
from kvcache_sim.policies import simulate_policy
from kvcache_sim.trace import parse_trace_file
from tiers.recorded import COST_OF_WHOLE_PROMPTS, KNOWN, POLICIES, QUICK, WITHIN, blocks_of, distinct, file, requests

from kvpool_cli.main import main
from kvpool_lab.belady import belady_tokens
from kvpool_lab.replay import replay

WHOLE = os.environ.get("KVPOOL_WHOLE_TRACES") == "1"
NAMES = ("conversation", "synthetic", "claude-code")
# by how much of the tokens the best possible is above LRU at least, where that is less than elsewhere
APART = {("claude-code", 20): 0.004}


@pytest.mark.parametrize(("name", "percent"), KNOWN if WHOLE else QUICK)
def test_replay_gives_the_hit_rates_that_are_known(name: str, percent: int) -> None:
    found = replay(requests(name), [(policy, blocks_of(name, percent)) for policy in POLICIES])
    lru, gdsf, blockwise, _ = KNOWN[name, percent]
    arenas = blockwise - COST_OF_WHOLE_PROMPTS.get((name, percent), 0.0)
    for outcome, known in zip(found.outcomes, (lru, gdsf, blockwise, arenas), strict=True):
        rate = outcome.hit_tokens / found.tokens
        assert abs(rate - known) <= WITHIN[outcome.policy], (outcome.policy, rate)


@pytest.mark.parametrize("name", NAMES if WHOLE else ["synthetic"])
def test_lru_and_the_best_possible_equal_an_independent_simulator(name: str) -> None:
    trace = parse_trace_file(file(name), block_size=512)
    plan = build_execution_plan(trace, warmup_fraction=0.5)
    seen = requests(name)
    warm_up = plan.warmup_requests
    tokens = sum(request.tokens for request in seen[warm_up:])
    for percent in (1, 5, 20):
        blocks = blocks_of(name, percent)
        lru = replay(seen, [("LRU", blocks)], warm_up).outcomes[0].hit_tokens / tokens
        assert abs(lru - simulate_policy(plan, "lru", blocks).hitRate) < 0.0005
        best = belady_tokens(seen, blocks, warm_up) / tokens
        assert abs(best - simulate_policy(plan, "optimal", blocks).hitRate) < 0.0005
        assert lru < best - APART.get((name, percent), 0.01)  # the two are not one and the same


@pytest.mark.parametrize(("name", "percent"), [("synthetic", 5), ("synthetic", 20)])
def test_the_best_possible_is_what_is_known(name: str, percent: int) -> None:
    tokens = sum(request.tokens for request in requests(name))
    rate = belady_tokens(requests(name), blocks_of(name, percent)) / tokens
    assert abs(rate - KNOWN[name, percent][3]) <= 0.005


def test_the_command_tells_the_same_in_text_and_json() -> None:
    arguments = ["plan", "--trace", str(file("synthetic")), "--capacity", "5%", "--capacity", "600G"]
    arguments += ["--follow", "100000", "--routing", "round-robin"]
    done = CliRunner().invoke(main, [*arguments, "-o", "json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["requests"], told["distinctBlocks"], told["idealTokenHitRate"]) == (
        3993,
        distinct("synthetic"),
        0.6512,
    )
    assert [row["blocks"] for row in told["capacities"]] == [2196, 600 * 10**9 // (512 * 131072)]
    rates = told["capacities"][0]["tokenHitRate"]
    assert rates.keys() == {"GDSF", "LRU", "S3FIFO"}
    text = CliRunner().invoke(main, arguments).stdout
    (row,) = [line for line in text.splitlines() if line.startswith("5%")]
    assert row.split()[3:6] == [f"{100 * rates[name]:.1f}%" for name in ("GDSF", "LRU", "S3FIFO")]
