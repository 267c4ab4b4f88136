"""A worker that is killed costs nothing that lay in its arena: the next one serves the same blocks, at once, with the
same state; and whenever the kill came, no slot that was half-written is ever served."""

import hashlib
import mmap
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from agent_pool import AgentPool, Node
from arena_audit import held_by
from process_use import stands_still
from readiness_watch import watching
from replica import wait_for
from standin_engine import Served, prompt
from under_load import Load

from kvpool_agent.store.slab import LEASE_SECONDS
from kvpool_agent.store.table import HeaderTable
from kvpool_contract.status import AgentStatus

ROW = 4096
NO_WARM_UP = {"prewarm": {"maxBytes": 0}}  # what is in the arena after a restart was recovered
VICTIMS = 4
KILLS = int(os.environ.get("KVPOOL_TIERS_KILLS", "20")) // VICTIMS  # of each
BLOCKS = 6


def state_of(status: AgentStatus) -> tuple[str, str]:
    return status.state, status.reason


def test_a_worker_killed_twenty_times_while_serving_has_its_blocks_and_its_state_again_each_time(
    pool: AgentPool,
) -> None:
    """Four victims at the same time; one reader for all."""
    victims = [pool.node(f"v{i}", **NO_WARM_UP).impatient().start().attach() for i in range(VICTIMS)]
    reader, turn = pool.joined("reader"), threading.Lock()
    with ThreadPoolExecutor() as threads:
        for done in [threads.submit(kill_again_and_again, victim, reader, turn) for victim in victims]:
            done.result()


def kill_again_and_again(victim: Node, reader: Node, turn: threading.Lock) -> None:
    name = victim.replica.name
    for i in range(KILLS):
        victim.engine.serve(prompt(f"{name}{i}", BLOCKS))
    served_always = prompt(f"{name} always", BLOCKS)
    victim.engine.serve(served_always)
    blocks = (KILLS + 1) * BLOCKS
    before = victim.until_blocks(blocks)
    victim.until("latched", lambda _: victim.ready())
    with watching(victim.replica) as answers, Load(victim, lambda _: served_always) as load:
        for i in range(KILLS):
            status = victim.until_restarted(victim.kill_worker())
            assert state_of(status) == state_of(before) == ("Ready(degraded)", "nothing_to_warm")
            assert (status.arena.blocks, status.arena.used_bytes) == (blocks, blocks * ROW)
            assert (status.counters["recovered_blocks"], status.counters["discarded_slots"]) == (blocks, 0)
            reader.until_sees(victim)
            with turn:
                moved = reader.status().transfers.get("demand_in")
                assert reader.engine.serve(prompt(f"{name}{i}", BLOCKS)) == Served(pool=BLOCKS)
                assert reader.status().transfers["demand_in"].blocks - (moved.blocks if moved else 0) == BLOCKS
            status = victim.status()
            assert "store_in" not in status.transfers and "demand_in" not in status.transfers
            assert status.arena.blocks == blocks
        victim.until("loads again", lambda _: any(one.pool == BLOCKS for one in load.served))
    assert answers and all(answers)
    assert {one.pool + one.computed for one in load.served} == {BLOCKS}


SLOT = 512 << 10
STORED = [prompt(f"stored {i}", 16) for i in range(6)]
FETCHED = [prompt(f"fetched {i}", 16) for i in range(4)]


def being_written(memory: memoryview) -> int:
    """Slots of a full arena that hold no block now: reserved, written, or waiting for their commit."""
    table = HeaderTable.found(memory)
    assert table is not None
    return table.header.slot_count - len(list(table.not_free()))


def slots_of(node: Node) -> str:
    """A hash over the bytes of the arena's slots."""
    with node.arena_file().open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return hashlib.blake2b(file.read(size - SLOT)).hexdigest()


def stop(process: int) -> None:
    """SIGSTOP; returns when all of its threads stand still."""
    os.kill(process, signal.SIGSTOP)
    wait_for("all threads stopped", lambda: stands_still(process), 10, 0.0005)


def kill_in_the_middle(node: Node, draw: random.Random) -> str:
    """Kills the worker while it is filling slots of its full arena."""
    incarnation, worker = node.status().incarnation, node.replica.worker_pid()
    until = time.monotonic() + 30
    with node.arena_file().open("rb") as file:
        memory = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    while time.monotonic() < until:
        time.sleep(draw.uniform(0, 0.01))
        stop(worker)
        if being_written(memory):
            os.kill(worker, signal.SIGKILL)
            return incarnation
        os.kill(worker, signal.SIGCONT)
    raise AssertionError("the worker was never caught in the middle of a write")


@pytest.mark.parametrize("seed", range(2))
def test_a_worker_killed_in_the_middle_of_a_store_or_a_fetch_never_serves_a_wrong_byte(
    pool: AgentPool, seed: int
) -> None:
    source = pool.node("s", arenaBytes=80 * SLOT).start().attach(row_bytes=SLOT)
    for one in FETCHED:
        source.engine.serve(one)
    source.until_blocks(4 * 16)
    # both arenas are too small for what they are asked for, so that slots change their blocks all the time
    storing = pool.node("a", arenaBytes=40 * SLOT, **NO_WARM_UP).impatient().start().attach(row_bytes=SLOT)
    fetching = pool.node("b", arenaBytes=24 * SLOT, **NO_WARM_UP).impatient().start().attach(row_bytes=SLOT)
    fetching.until_sees(source)
    with (
        Load(storing, lambda n: STORED[n % len(STORED)]),
        Load(fetching, lambda n: FETCHED[n % len(FETCHED)]),
        ThreadPoolExecutor() as threads,
    ):
        draws = [random.Random(f"{seed} {node.replica.name}") for node in (storing, fetching)]
        for done in [threads.submit(kill_under_load, *each) for each in zip((storing, fetching), draws, strict=True)]:
            done.result()
    for node, slots in ((storing, 40), (fetching, 24)):
        status = node.until("nothing under way", lambda s: s.arena.used_bytes == s.arena.blocks * SLOT)
        assert held_by(node, STORED + FETCHED, SLOT) == status.arena.blocks < slots
        size = node.arena_file().stat()
        assert size.st_blocks * 512 <= size.st_size == status.arena.limit_bytes == slots * SLOT


def kill_under_load(node: Node, draw: random.Random) -> None:
    """Kills the worker while it fills slots, and at any moment."""
    node.until("busy and latched", lambda s: s.arena.evicted_blocks > 16 and node.ready())
    with watching(node.replica) as answers:
        for in_the_middle in (True, False):
            time.sleep(draw.uniform(0, 0.2))
            killed = kill_in_the_middle(node, draw) if in_the_middle else node.kill_worker()
            status = node.until_restarted(killed)
            left = slots_of(node)
            assert state_of(status) == ("Ready(degraded)", "nothing_to_warm")
            assert status.counters["discarded_slots"] == 0  # no header stood before its bytes
            assert status.counters["recovered_blocks"] > 0
            assert status.arena.used_bytes <= status.arena.limit_bytes
            assert held_by(node, STORED + FETCHED, SLOT) > 0
            # while the predecessor's leases may hold nothing is written; a slow machine looks too late
            held_until = status.started_at + 0.9 * LEASE_SECONDS
            time.sleep(max(0.0, held_until - 0.2 - time.time()))
            now_there = slots_of(node)
            assert now_there == left or time.time() > held_until
            node.until("evicts again", lambda s: s.arena.evicted_blocks > 16)
    assert answers and all(answers)


def test_a_warm_replica_is_warm_after_a_restart_and_fetches_only_what_was_damaged(pool: AgentPool) -> None:
    a = pool.joined("a")
    a.engine.serve(prompt("hot", 12))
    a.until_blocks(12)
    c = pool.node("c", readiness={"targetPercent": 100}).impatient().start().attach()
    c.until_state("Ready(warm)")
    c.until("latched", lambda _: c.ready())
    with watching(c.replica) as answers:
        status = c.until_restarted(c.kill_worker())
        assert (state_of(status), status.arena.blocks) == (("Ready(warm)", ""), 12)
        status = c.until("warm-up over", lambda s: any(e.word == "warm_end" for e in s.events))
        assert (state_of(status), status.transfers) == (("Ready(warm)", ""), {})

        for slot in (2, 5, 7):
            change(c, slot * ROW)
        status = c.until_restarted(c.kill_worker())
        assert (status.counters["recovered_blocks"], status.counters["discarded_slots"]) == (9, 3)
        status = c.until_blocks(12)
        assert state_of(status) == ("Ready(warm)", "")
        assert status.transfers["prewarm_in"].blocks == 3

        # headers that can't be read: everything is lost, shown as such, and fetched again
        change(c, -100)
        killed = c.kill_worker()
        status = c.until("another worker", lambda s: s.incarnation != killed and s.reason == "arena_lost")
        assert (status.state, status.arena.blocks) == ("Ready(degraded)", 0)
        assert "recovered_blocks" not in status.counters
        assert c.until_state("Ready(warm)").transfers["prewarm_in"].blocks == 12
    assert answers and all(answers)
    assert c.engine.serve(prompt("hot", 12)) == Served(pool=12)


def change(node: Node, offset: int) -> None:
    """Changes one byte of the arena's memory behind the agent's back; from the end where the offset is negative."""
    with node.arena_file().open("r+b") as memory:
        memory.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        old = memory.read(1)
        memory.seek(-1, os.SEEK_CUR)
        memory.write(bytes([old[0] ^ 1]))
