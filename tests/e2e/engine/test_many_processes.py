"""Several API servers and data-parallel engine cores in one pod: a session for each core, one agent, one probe."""

from pathlib import Path

from engine.measured import BLOCK, Outcome, ask, by_source, prompt, settle
from replica import MIB, Pool, Replica, Tools, wait_for

ARGUMENTS = ("--data-parallel-size", "2", "--api-server-count", "2")


def at_rank(replica: Replica, tokens: list[int], rank: int) -> Outcome:
    return ask(replica, tokens, headers={"X-data-parallel-rank": str(rank)})


def test_the_ranks_of_one_engine_share_by_their_agent(tools: Tools, tmp_path: Path) -> None:
    pool = Pool(
        tools,
        tmp_path / "pool",
        executor="uni",
        host_pool_bytes=128 * MIB,
        device_bytes=64 * MIB,
        max_model_len=1024,
        engine_arguments=ARGUMENTS,
    )
    replica = pool.replica("A")
    tokens = prompt(9000, 2 * BLOCK + 5)
    try:
        replica.start_agent()
        replica.start_engine()
        replica.wait_engine()
        replica.wait_ready()
        status = wait_for("two sessions", lambda: s if (s := replica.status())["attaches"] == 2 else None, 20)
        assert status["probe"]["state"] == "alone"
        first = at_rank(replica, tokens, 0)
        assert first.tokens == by_source(computed=2 * BLOCK + 5)
        again = at_rank(replica, tokens, 0)
        assert again.tokens == by_source(device=2 * BLOCK, computed=5)
        other = at_rank(replica, tokens, 1)
        assert (other.tokens, other.answer) == (by_source(pool=2 * BLOCK, computed=5), again.answer)
        assert settle(replica)["arena"]["blocks"] == 2
        assert not list(Path("/dev/shm").glob("vllm_offload_*")), "a host pool's name is still there"
    finally:
        pool.stop()
