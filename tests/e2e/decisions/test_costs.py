"""What loading and computing cost is measured by each request, and told in status and metrics."""

import json

import pytest
from agent_pool import AgentPool
from click.testing import CliRunner
from standin_engine import BLOCK_TOKENS, Served, prompt

from kvpool_cli.main import main

TOKEN_SECONDS = 0.0005


def test_each_request_is_measured_by_what_it_computed_and_each_load_by_where_it_came_from(pool: AgentPool) -> None:
    a = pool.node("a").start().attach(token_seconds=TOKEN_SECONDS)
    b = pool.node("b").start().attach(token_seconds=TOKEN_SECONDS)
    for length in (8, 16, 24):
        a.engine.serve(prompt(f"p{length}", length))
    costs = a.status().costs.recompute
    assert (costs.count, costs.longest) == (3, 24 * BLOCK_TOKENS + 1)
    # a token can't have cost less than it was waited for
    assert costs.start + costs.linear * 97 + costs.pairs * 97 * 48.5 >= 0.98 * 97 * TOKEN_SECONDS

    b.until_sees(a).until_knows(*(prompt(f"p{length}", length) for length in (8, 16, 24)))
    for length in (8, 16, 24):
        assert b.engine.serve(prompt(f"p{length}", length)) == Served(pool=length)
    costs = b.status().costs
    (address,) = costs.paths
    assert address == f"127.0.0.1:{a.replica.peer_port}"
    path = costs.paths[address]
    assert (path.moved, path.rate.count, costs.lookup.count, costs.recompute.count) == (3, 3, 3, 3)
    assert path.rate.p05 > 0
    assert costs.install.count == 2  # of the largest loads: 16 and 24 blocks are of one power of two
    assert costs.recompute.longest == 1

    # what lies here already is installed and not moved
    b.engine.forget()
    assert b.engine.serve(prompt("p24", 24)) == Served(pool=24)
    costs = b.status().costs
    assert (costs.paths[address].moved, costs.install.count, costs.recompute.count) == (3, 3, 4)


@pytest.mark.parametrize("told", [False, True])
def test_an_engine_that_tells_no_times_is_not_measured(pool: AgentPool, told: bool) -> None:
    a = pool.node("a").start().attach(token_seconds=TOKEN_SECONDS if told else 0.0)
    a.engine.serve(prompt("p", 4))
    assert a.status().costs.recompute.count == int(told)


def test_a_plan_measures_an_engine_by_prompts_that_it_computes_once_and_finds_once(pool: AgentPool) -> None:
    a = pool.node("a").start().attach(probe=True)
    a.until("probed", lambda status: status.probe.state not in ("", "pending"))
    before = a.engine.tokens.copy()
    engine = f"http://127.0.0.1:{a.engine.port}"
    done = CliRunner().invoke(main, ["plan", "--engine", engine, "--longest", "600", "--path", "tcp=1G", "-o", "json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [row["prefix_tokens"] for row in told["breakEven"]] == [128, 256, 512]
    assert all(min(row["cold_prefill_ms"], row["local_hit_ttft_ms"]) > 0 for row in told["breakEven"])
    # three of each length, and one before all of them
    assert a.engine.tokens - before == {"local_compute": 128 + 3 * (128 + 256 + 512), "host": 3 * (128 + 256 + 512)}
