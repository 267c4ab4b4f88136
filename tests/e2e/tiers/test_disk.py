"""The disk tier under real agents: what two requests contained is served from there, after an eviction, after a restart
of the worker, after the end of the whole container; and whenever a kill comes, nothing else is."""

import base64
import os
import random
import shutil
import time
from pathlib import Path

import pytest
from agent_pool import AgentPool, Node
from arena_audit import held_by
from replica import MIB
from standin_engine import Served, prompt
from trusted import NAME
from under_load import Load

from kvpool_agent.keyring import Keyring, Space
from kvpool_agent.store.disk.folder import FOLDER
from kvpool_agent.store.disk.header import PAGE
from kvpool_contract.config import CacheNamespace
from kvpool_contract.status import AgentStatus, Reuse

ROW = 4096
BLOCKS = 6
KILLS = int(os.environ.get("KVPOOL_TIERS_KILLS", "10"))
OLD, NEW = b"k" * 32, b"n" * 32
ALONE = {"prewarm": {"maxBytes": 0}}


either_way = pytest.mark.parametrize("sealed", [False, True], ids=["in clear", "sealed"])


def key_file(folder: Path, *keys: bytes) -> Path:
    """Of the cache namespace whose blocks lie in the folder. keys: that it holds from now on, without any the first."""
    file = folder.with_suffix(".key")
    if keys or not file.exists():
        fresh = file.with_suffix(".new")
        fresh.write_bytes(b"\n".join(map(base64.b64encode, keys or (OLD,))))
        fresh.rename(file)
    return file


def keyring() -> Keyring:
    """The keys of such an agent."""
    ring = Keyring()
    ring.pool = NAME
    ring.spaces = [Space(CacheNamespace(name="all", keyFile=""))]
    ring.default.take([OLD])
    return ring


def on_disk(pool: AgentPool, name: str, folder: Path, *, sealed: bool = False, **agent: object) -> Node:
    """sealed: whether its one cache namespace has a key."""
    folder.mkdir(exist_ok=True)
    if sealed:
        agent["cacheNamespaces"] = [{"name": "all", "keyFile": str(key_file(folder))}]
    return pool.node(name, **{**ALONE, "disk": {"path": str(folder)}, **agent}).impatient()


def serve(node: Node, what: str, blocks: int = BLOCKS) -> Served:
    """One request of an engine that holds nothing of its own any more."""
    node.engine.forget()
    return node.engine.serve(prompt(what, blocks))


def until_on_disk(node: Node, blocks: int) -> AgentStatus:
    return node.until(f"{blocks} blocks on the disk", lambda s: s.disk.blocks == blocks)


def heat(node: Node, what: str, blocks: int = BLOCKS) -> None:
    """Two requests that contain the blocks; the second one's come from the arena."""
    before = node.status().arena.blocks
    assert serve(node, what, blocks) == Served(computed=blocks)
    node.until_blocks(before + blocks)
    node.until_knows(prompt(what, blocks))
    assert serve(node, what, blocks) == Served(pool=blocks)


def misses_add_up(status: AgentStatus, computed: int) -> None:
    assert sum(status.misses.values()) == computed


@either_way
def test_a_container_that_comes_back_with_its_volume_serves_from_it_with_exact_counts(
    pool: AgentPool, tmp_path: Path, sealed: bool
) -> None:
    node = on_disk(pool, "a", tmp_path / "disk", sealed=sealed).start().attach()
    heat(node, "hot")
    assert serve(node, "once") == Served(computed=BLOCKS)
    status = until_on_disk(node, BLOCKS)
    assert (status.disk.state, status.disk.reason) == ("ready", "")
    # one file; what is sealed is 16 bytes longer, of the header and of each block
    assert status.disk.used_bytes == (2 * PAGE + BLOCKS * (ROW + PAGE) if sealed else PAGE + BLOCKS * ROW)
    assert status.transfers["disk_out"].blocks == BLOCKS
    # each block of the second request after six: itself and five others
    assert status.reuse == {"all" if sealed else "": Reuse(ROW, 3 * BLOCKS, [0, 0, 0, BLOCKS])}
    node.close_engines()
    node.replica.stop_agent()

    node.start().attach()
    status = node.until("looked through", lambda s: s.disk.state == "ready")
    assert (status.arena.blocks, status.disk.blocks, status.counters["disk_recovered_blocks"]) == (0, BLOCKS, BLOCKS)
    node.until_knows(prompt("hot", BLOCKS))
    assert serve(node, "hot") == Served(pool=BLOCKS)
    status = node.until_blocks(BLOCKS)
    assert {what: moved.blocks for what, moved in status.transfers.items()} == {"disk_in": BLOCKS}
    assert status.hits.local_by_place == {"disk": BLOCKS}
    misses_add_up(status, 0)
    assert serve(node, "once") == Served(computed=BLOCKS)
    misses_add_up(node.status(), BLOCKS)


def test_a_container_that_comes_back_with_an_empty_volume_is_restored_from_the_pool(
    pool: AgentPool, tmp_path: Path
) -> None:
    """Warmed by the members that hold what it held, as a newcomer is."""
    node = on_disk(pool, "a", tmp_path / "disk", prewarm={}).start().attach()
    heat(node, "hot")
    until_on_disk(node, BLOCKS)
    other = pool.joined("b")
    other.until("warm", lambda s: s.state == "Ready(warm)" and s.arena.blocks == BLOCKS)
    other.until_knows(prompt("hot", BLOCKS))
    assert serve(other, "hot") == Served(pool=BLOCKS)  # what nobody has asked it for is not hot there
    node.close_engines()
    node.replica.stop_agent()
    shutil.rmtree(tmp_path / "disk" / FOLDER)

    node.start().attach()
    status = node.until("warm", lambda s: s.state == "Ready(warm)" and s.disk.state == "ready")
    assert (status.arena.blocks, status.disk.blocks) == (BLOCKS, 0)
    assert {what: moved.blocks for what, moved in status.transfers.items()} == {"prewarm_in": BLOCKS}
    assert serve(node, "hot") == Served(pool=BLOCKS)
    misses_add_up(node.status(), 0)


def test_what_the_arena_has_no_room_for_is_served_from_the_disk(pool: AgentPool, tmp_path: Path) -> None:
    arena = MIB + 64 * 1024  # 260 slots or so
    node = on_disk(pool, "a", tmp_path / "disk", arenaBytes=arena, eviction="LRU").start().attach()
    heat(node, "hot")
    until_on_disk(node, BLOCKS)
    served = 0
    while node.status().arena.evicted_blocks < 60:
        assert serve(node, f"other {served}", 60) == Served(computed=60)
        served += 1
        assert served < 20
    moved = node.status().transfers
    assert serve(node, "hot") == Served(pool=BLOCKS)
    status = node.status()
    assert "disk_in" not in moved and status.transfers["disk_in"].blocks == BLOCKS
    misses_add_up(status, BLOCKS + served * 60)


def test_a_worker_that_comes_back_finds_its_disk_again(pool: AgentPool, tmp_path: Path) -> None:
    node = on_disk(pool, "a", tmp_path / "disk").start().attach()
    heat(node, "hot")
    until_on_disk(node, BLOCKS)
    status = node.until_restarted(node.kill_worker())
    status = node.until("ready", lambda s: s.disk.state == "ready")
    assert (status.arena.blocks, status.disk.blocks) == (BLOCKS, BLOCKS)


def test_where_the_disk_returns_other_bytes_a_member_is_asked(pool: AgentPool, tmp_path: Path) -> None:
    node = on_disk(pool, "a", tmp_path / "disk").start().attach()
    heat(node, "hot")
    until_on_disk(node, BLOCKS)
    other = pool.joined("b", **ALONE).until_sees(node)
    other.until_knows(prompt("hot", BLOCKS))
    assert serve(other, "hot") == Served(pool=BLOCKS)
    node.close_engines()
    node.replica.stop_agent()
    (file,) = [f for f in (tmp_path / "disk" / FOLDER).iterdir() if len(f.name) == 32]
    data = bytearray(file.read_bytes())
    data[PAGE + ROW] ^= 1  # in the second block
    file.write_bytes(data)

    node.start().attach().until_sees(other)
    node.until("looked through", lambda s: s.disk.state == "ready" and s.disk.blocks == BLOCKS)
    node.until_knows(prompt("hot", BLOCKS))
    assert serve(node, "hot") == Served(pool=BLOCKS)
    status = node.until_blocks(BLOCKS)
    assert (status.counters["disk_damaged_files"], status.counters["tag_failures"]) == (1, 1)
    assert (status.transfers["disk_in"].blocks, status.transfers["demand_in"].blocks) == (1, BLOCKS - 1)
    misses_add_up(status, 0)


def test_alone_with_a_broken_file_it_computes_and_says_why(pool: AgentPool, tmp_path: Path) -> None:
    node = on_disk(pool, "a", tmp_path / "disk").start().attach()
    heat(node, "hot")
    until_on_disk(node, BLOCKS)
    node.close_engines()
    node.replica.stop_agent()
    (file,) = [f for f in (tmp_path / "disk" / FOLDER).iterdir() if len(f.name) == 32]
    with file.open("r+b") as opened:
        opened.seek(PAGE)
        opened.write(b"\0" * ROW)

    node.start().attach()
    node.until("looked through", lambda s: s.disk.state == "ready" and s.disk.blocks == BLOCKS)
    node.until_knows(prompt("hot", BLOCKS))
    assert serve(node, "hot") == Served(computed=BLOCKS)
    assert node.status().misses == {"disk_failed": BLOCKS}


def test_a_volume_that_vanishes_is_no_tier_and_no_obstacle(pool: AgentPool, tmp_path: Path) -> None:
    node = on_disk(pool, "a", tmp_path / "disk").start().attach()
    heat(node, "hot")
    until_on_disk(node, BLOCKS)
    shutil.rmtree(tmp_path / "disk")
    status = node.until("noticed", lambda s: s.disk.state == "degraded")
    assert (status.disk.reason, status.disk.blocks) == ("disk_vanished", 0)
    assert serve(node, "hot") == Served(pool=BLOCKS)
    (tmp_path / "disk").mkdir()
    node.until("a tier again", lambda s: s.disk.state == "ready", 90)
    assert serve(node, "hot") == Served(pool=BLOCKS)
    until_on_disk(node, BLOCKS)


def test_blocks_of_a_former_key_come_from_the_disk_and_are_named_anew(pool: AgentPool, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    node = on_disk(pool, "a", folder, sealed=True).start().attach()
    heat(node, "hot")
    until_on_disk(node, BLOCKS)
    node.close_engines()
    node.replica.stop_agent()
    key_file(folder, NEW, OLD)
    node.start().attach()
    node.until("looked through", lambda s: s.disk.state == "ready" and s.disk.blocks == BLOCKS)
    assert serve(node, "hot") == Served(pool=BLOCKS)
    status = node.until_blocks(BLOCKS)
    assert (status.transfers["disk_in"].blocks, status.counters["renamed_blocks"]) == (BLOCKS, BLOCKS)
    assert serve(node, "hot") == Served(pool=BLOCKS)
    until_on_disk(node, 2 * BLOCKS)  # under the new key as well, by now
    key_file(folder, NEW)
    until_on_disk(node, BLOCKS)
    node.close_engines()
    node.replica.stop_agent()
    node.start().attach()
    node.until("looked through", lambda s: s.disk.state == "ready" and s.disk.blocks == BLOCKS)
    assert serve(node, "hot") == Served(pool=BLOCKS)


SLOT = 256 << 10
PROMPTS = [prompt(f"churn {i}", 12) for i in range(8)]


@either_way
@pytest.mark.parametrize("seed", [os.environ.get("KVPOOL_TIERS_SEED", "1")])
def test_a_worker_killed_at_any_moment_never_serves_a_wrong_byte_and_leaves_nothing(
    pool: AgentPool, tmp_path: Path, seed: str, sealed: bool
) -> None:
    """The arena and the disk are too small for what they are asked for: it stores, evicts, writes and reads all the
    time."""
    draw, disk = random.Random(seed), {"path": str(tmp_path / "disk"), "bytes": 20 * MIB}
    node = on_disk(pool, "a", tmp_path / "disk", sealed=sealed, arenaBytes=40 * SLOT, disk=disk)
    node.start().attach(row_bytes=SLOT)
    order = [draw.choice([0, 1, draw.randrange(len(PROMPTS))]) for _ in range(10_000)]
    seen = {"disk_in": 0, "disk_out": 0}
    with Load(node, lambda n: PROMPTS[order[n % len(order)]]):
        for _ in range(KILLS):
            node.until("busy", lambda s: s.transfers.get("disk_out") and s.arena.evicted_blocks > 12, 60)
            time.sleep(draw.uniform(0, 0.5))
            for what, moved in node.status().transfers.items():
                if what in seen:
                    seen[what] += moved.blocks
            status = node.until_restarted(node.kill_worker())
            assert status.counters["discarded_slots"] == 0
            assert status.arena.used_bytes <= status.arena.limit_bytes
    status = node.until(
        "nothing under way", lambda s: s.disk.state == "ready" and s.arena.used_bytes == s.arena.blocks * SLOT, 60
    )
    assert held_by(node, PROMPTS, SLOT, keyring() if sealed else None) == status.arena.blocks
    assert all(seen.values()), seen
    assert status.counters.get("tag_failures", 0) == status.counters.get("disk_damaged_files", 0) == 0
    node.close_engines()
    node.replica.stop_agent()
    files = [f for f in (tmp_path / "disk" / FOLDER).iterdir() if f.name != "lock"]
    assert all(len(f.name) == 32 for f in files), "no file is left half-written, none is broken"
    assert {f.read_bytes()[:8] for f in files} == {b"kvpSeald" if sealed else b"kvpExtnt"}
    assert sum(f.stat().st_size for f in files) <= 20 * MIB * 9 // 10
