"""Joining never stops an engine: whatever stands against it, the engine starts, serves, and the reason is told."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from engine.forged import Forge, forged_pool
from engine.measured import BLOCK, ask, by_source, prompt, settle, until_told
from replica import Pool, Replica, Tools, wait_for

from kvpool_cli.main import main

TOKENS = prompt(6000, 2 * BLOCK + 5)
SERVED = by_source(computed=2 * BLOCK + 5)


@pytest.fixture
def pool(forge: Forge, tools: Tools, tmp_path: Path) -> Pool:
    return forged_pool(forge, tools, tmp_path / "pool")


def told(replica: Replica) -> str:
    """What `kvpool status` prints about the replica's agent."""
    members = replica.folder / "workers"
    members.write_text(f"127.0.0.1:{replica.worker_port}\n")
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, ["status", "--members", str(members)]).output


def no_room(pool: Pool) -> None:
    pool.host_pool_bytes = 1 << 50


def broken_adapter(pool: Pool) -> None:
    (pool.client / "kvpool_client" / "engine_vllm" / "tier.py").write_text("this is no Python\n")


def refusing_agent(pool: Pool) -> None:
    pool.agent = {"arenaBytes": 16 << 20}


@pytest.mark.parametrize(
    ("reason", "obstacle"),
    [("no_shm_room", no_room), ("adapter_import_failed", broken_adapter), ("arena_too_small", refusing_agent)],
)
def test_an_engine_that_cannot_join_serves_bare_and_the_reason_is_in_status(
    pool: Pool, reason: str, obstacle: Callable[[Pool], None]
) -> None:
    obstacle(pool)
    replica = pool.replica("A")
    try:
        replica.start_agent()
        replica.start_engine()
        replica.wait_engine()
        replica.wait_ready()
        assert ask(replica, TOKENS).tokens == SERVED
        status = replica.status()
        assert (status["state"], status["reason"], status["attached"]) == ("Ready(degraded)", reason, False)
        assert f"{reason}:" in told(replica)
    finally:
        pool.stop()


def test_an_engine_without_an_agent_serves_bare_and_attaches_by_itself_when_one_comes(pool: Pool) -> None:
    replica = pool.replica("A")
    try:
        replica.start_engine()
        replica.wait_engine()
        assert ask_engine(replica) == SERVED
        assert "agent_unreachable:" in told(replica)
        shm = {path.name for path in Path("/dev/shm").glob("vllm_offload_*")}
        assert not shm, "the host pool's name is still there"
        replica.start_agent()
        wait_for("the engine to attach", lambda: replica.status()["probe"]["state"] == "alone", 30)
        # what was computed before the agent came is offered with the next request, and then found
        assert ask(replica, TOKENS).tokens == by_source(device=2 * BLOCK, computed=5)
        assert settle(replica)["arena"]["blocks"] == 2
        until_told(replica)
        replica.forget_all()
        assert ask(replica, TOKENS).tokens == by_source(pool=2 * BLOCK, computed=5)
    finally:
        pool.stop()


def ask_engine(replica: Replica) -> dict[str, int]:
    """Tokens of one request by source, of an engine whose agent can't be asked."""
    replica.complete(TOKENS)
    return wait_for(
        "the engine's counters",
        lambda: tokens if sum((tokens := replica.prompt_tokens()).values()) >= len(TOKENS) else None,
        20,
    )
