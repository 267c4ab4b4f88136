"""Ten times the arena through one agent: no descriptor and no thread more than before, and memory within its bound."""

from pathlib import Path

from agent_pool import AgentPool, Node
from process_use import OVERHEAD, Use, use_of
from replica import MIB, wait_for
from standin_engine import Served, prompt

ROW = 64 << 10
ARENA = 8 * MIB
BLOCKS = 16
TIMES = 10


def round_of(a: Node, b: Node, name: str) -> None:
    """One prompt computed at one member and loaded at the other; both host pools are emptied by the next ones."""
    assert a.engine.serve(prompt(name, BLOCKS)) == Served(computed=BLOCKS)
    served = b.until_knows(prompt(name, BLOCKS)).engine.serve(prompt(name, BLOCKS))
    assert (served.pool + served.computed, served.equal) == (BLOCKS, True)


def test_ten_arenas_of_churn_leave_descriptors_threads_and_memory_where_they_were(pool: AgentPool) -> None:
    a, b = pool.all_started("ab", arenaBytes=ARENA)
    for node in (a, b):
        node.attach(row_bytes=ROW, rows=4 * BLOCKS)
        # one heap for each thread would grow with the cores of the machine, and past the bound on a large one
        assert b"MALLOC_ARENA_MAX=2" in Path(f"/proc/{node.replica.worker_pid()}/environ").read_bytes()
    b.until_sees(a)
    for n in range(2 * ARENA // (ROW * BLOCKS)):  # until every pool of threads and connections has its size
        round_of(a, b, f"first-{n}")
    before = {node: use_of(node) for node in (a, b)}
    rounds = TIMES * ARENA // (BLOCKS * ROW)
    for n in range(rounds):
        round_of(a, b, f"churn-{n}")
    status = b.status()
    assert status.transfers["demand_in"].bytes >= TIMES * ARENA
    assert status.arena.used_bytes <= ARENA
    for node in (a, b):
        was = before[node]

        def settled(node: Node = node, was: Use = was) -> bool:
            now = use_of(node)
            return now.descriptors <= was.descriptors and now.threads <= was.threads

        wait_for("descriptors and threads as before", settled, 20, 0.1)
        now = use_of(node)
        # the arena's pages and all memory of supervisor and worker, within the limit and 64 MiB
        assert 0 < now.arena <= ARENA
        assert now.memory <= ARENA + OVERHEAD
        print(f"{node.replica.name}: {rounds} rounds, {now}")
