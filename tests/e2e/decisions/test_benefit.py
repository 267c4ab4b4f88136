"""What sharing saves and costs is measured request by request, told by cache namespace, and below zero where it is."""

from pathlib import Path

import pytest
from agent_pool import AgentPool
from standin_engine import Served, prompt
from throttled import ThrottledLink

TOKEN_SECONDS = 0.002  # 0.26 s for a prompt of 32 blocks
BLOCKS, ROW_BYTES = 32, 64 << 10


def test_requests_are_told_by_what_they_were_and_what_was_loaded_is_what_computing_it_would_have_cost(
    pool: AgentPool,
) -> None:
    a = pool.node("a").start().attach()
    b = pool.node("b", prewarm={"maxBytes": 0}).start().attach(token_seconds=TOKEN_SECONDS)
    for name in "pqr":
        a.engine.serve(prompt(name, BLOCKS))
    b.until_sees(a).until_knows(*(prompt(name, BLOCKS) for name in "pqr"))
    for name in "xy":
        assert b.engine.serve(prompt(name, BLOCKS)) == Served(computed=BLOCKS)
    assert b.engine.serve(prompt("x", BLOCKS)) == Served(host=BLOCKS)
    for name in "pqr":
        assert b.engine.serve(prompt(name, BLOCKS)) == Served(pool=BLOCKS)
    b.engine.forget()
    assert b.engine.serve(prompt("y", BLOCKS)) == Served(pool=BLOCKS)  # from its own arena: it computed that

    status = b.status()
    kinds = status.first_token[""]
    assert {kind: quantiles.count for kind, quantiles in kinds.items()} == {
        "cold": 2, "local": 2, "remote": 3, "fallback": 0,
    }  # fmt: skip
    benefit = status.benefit
    assert benefit.loads == 3
    # no token is computed in less than it takes
    assert benefit.saved >= 0.9 * 3 * BLOCKS * 4 * TOKEN_SECONDS
    assert benefit.waiting == pytest.approx(
        benefit.saved - benefit.loading - benefit.waited - benefit.stalled - benefit.written - benefit.displaced
    )
    assert min(benefit.loading, kinds["remote"].p50) > 0
    assert status.hits.shared_blocks == 3 * BLOCKS


def test_a_load_that_comes_to_nothing_is_a_fallback_and_its_wait_is_a_cost(pool: AgentPool, tmp_path: Path) -> None:
    a = pool.node("a", arenaBytes=16 << 20).start().attach(row_bytes=ROW_BYTES)
    a.engine.serve(prompt("p", BLOCKS))
    link = ThrottledLink(a.replica.peer_port)
    seeds = tmp_path / "seeds"
    seeds.write_text(f"{link.address}\n")
    options = {"members": {"file": str(seeds)}, "loading": {"mode": "Always", "deadlineSeconds": 1.0}}
    b = pool.node("b", arenaBytes=16 << 20, prewarm={"maxBytes": 0}, **options)
    b.start().attach(row_bytes=ROW_BYTES, token_seconds=TOKEN_SECONDS)
    try:
        b.until_sees(a).until_knows(prompt("p", BLOCKS))
        link.bytes_per_second = 4096.0  # sixteen seconds for a block
        assert b.engine.serve(prompt("p", BLOCKS)) == Served(computed=BLOCKS)
        status = b.status()
    finally:
        link.close()
    assert {kind: quantiles.count for kind, quantiles in status.first_token[""].items() if quantiles.count} == {
        "fallback": 1
    }
    assert status.benefit.waited >= 0.9
    assert status.benefit.waiting == -status.benefit.waited
