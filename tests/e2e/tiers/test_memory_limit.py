"""An agent under a hard limit of memory, as a kubelet sets it, that stores ten times its arena, and writes it to a disk
as well."""

from pathlib import Path

from agent_pool import AgentPool, Node
from memory_group import MemoryGroup, memory_group
from process_use import OVERHEAD, growth, use_of
from replica import MIB
from standin_engine import Served, prompt

SLOT = 256 << 10
BLOCKS = 16
ARENA, TURNS = 32 * MIB, 10
REQUESTS = TURNS * ARENA // (BLOCKS * SLOT)


def limited(pool: AgentPool, folder: Path, group: MemoryGroup) -> Node:
    folder.mkdir()
    disk = {"path": str(folder), "bytes": 2 * ARENA}
    return pool.node("a", prewarm={"maxBytes": 0}, arenaBytes=ARENA, disk=disk).patched(group.joining)


def churn(node: Node, number: int) -> None:
    """A prompt of its own, asked twice: the second time it comes from the arena, and goes to the disk."""
    tokens = prompt(f"churn {number}", BLOCKS)
    node.engine.forget()
    assert node.engine.serve(tokens) == Served(computed=BLOCKS)
    node.until("stored", lambda s: s.transfers["store_in"].blocks >= (number + 1) * BLOCKS)
    node.until_knows(tokens)
    node.engine.forget()
    assert node.engine.serve(tokens).pool == BLOCKS


def test_ten_times_its_capacity_of_churn_leaves_an_agent_within_its_limit_and_flat(
    pool: AgentPool, tmp_path: Path
) -> None:
    with memory_group(ARENA + OVERHEAD + 32 * MIB) as group:
        node = limited(pool, tmp_path / "disk", group).start().attach(row_bytes=SLOT, rows=2 * BLOCKS)
        began, used = node.status().incarnation, []
        for number in range(REQUESTS):
            churn(node, number)
            used.append(use_of(node).anonymous)
        status = node.until("written", lambda s: s.disk.used_bytes > ARENA)
        assert status.transfers["disk_out"].bytes > 4 * ARENA and status.counters["disk_evicted_blocks"] > 0
        assert status.arena.evicted_blocks > (TURNS - 1) * (ARENA // SLOT) * 9 // 10
        assert (group.kills, status.incarnation) == (0, began)
        assert use_of(node).memory < ARENA + OVERHEAD
        settled = used[len(used) // 3 :]  # by then the arena has been full once, and so has every pool of threads
        assert growth(settled) < 4 * MIB
        node.close_engines()
        node.replica.stop_agent()


def test_a_limit_below_the_arena_ends_it(pool: AgentPool, tmp_path: Path) -> None:
    """What the test above would see if it were so: its limit is one."""
    with memory_group(OVERHEAD) as group:
        node = limited(pool, tmp_path / "disk", group).start().attach(row_bytes=SLOT, rows=2 * BLOCKS)
        for number in range(4 * REQUESTS):
            node.engine.forget()
            node.engine.serve(prompt(f"churn {number}", BLOCKS))
            if group.kills:
                break
        assert group.kills > 0
        node.close_engines()
        node.replica.stop_agent()
