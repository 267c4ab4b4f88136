"""Memory that changes, room and descriptors that run out: each costs blocks, has its name, and is over when it is."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from agent_pool import AgentPool, Node
from arena_audit import held_by
from replica import MIB, get, wait_for
from standin_engine import Served, engine_keys, prompt

ROW, BLOCKS = 4096, 6


def flip(node: Node, slot: int) -> None:
    """One bit in the middle of a slot, behind the agent's back."""
    with node.arena_file().open("r+b") as memory:
        memory.seek(slot * ROW + ROW // 2)
        old = memory.read(1)
        memory.seek(-1, os.SEEK_CUR)
        memory.write(bytes([old[0] ^ 4]))


def test_a_bit_that_flips_in_an_arena_is_refused_to_the_own_engine_and_to_peers_and_the_block_is_dropped(
    pool: AgentPool,
) -> None:
    a, b = pool.all_joined("ab")
    own, asked = (prompt(name, BLOCKS) for name in ("own", "asked"))
    for tokens in (own, asked):  # slots 0 to 5, and 6 to 11
        a.engine.serve(tokens)
    a.until_blocks(2 * BLOCKS)

    flip(a, 2)
    a.engine.forget()
    assert a.engine.serve(own) == Served(pool=2, computed=4)
    status = a.until_blocks(2 * BLOCKS)  # dropped, and stored anew with what followed it
    assert (status.counters["tag_failures"], status.misses["evicted"]) == (1, 4)
    a.engine.forget()
    assert a.engine.serve(own) == Served(pool=BLOCKS)

    flip(a, BLOCKS + 2)
    b.until_sees(a)
    assert b.engine.serve(asked) == Served(pool=2, computed=4)
    status = a.status()
    assert (status.counters["tag_failures"], status.arena.blocks) == (2, 2 * BLOCKS - 1)
    assert status.transfers["demand_out"].blocks == BLOCKS - 1
    status = b.until_blocks(BLOCKS)
    assert status.misses == {"evicted": 4}
    assert "tag_failures" not in status.counters
    assert [(peer.breaker, peer.failures) for peer in status.peers] == [("closed", 0)]
    assert held_by(a, [own, asked], ROW) == 2 * BLOCKS - 1

    # the one that lost its block takes it from the one that has it now
    a.engine.forget()
    a.until_sees(b)
    assert a.engine.serve(asked) == Served(pool=BLOCKS)
    assert a.status().transfers["demand_in"].blocks == 1


BIG = 128 << 10
SLOTS = 15  # of 128 KiB in 2 MiB, with the headers


def test_an_arena_whose_slots_are_all_held_stores_and_fetches_nothing_and_does_again_when_they_are_free(
    pool: AgentPool,
) -> None:
    a = pool.node("a", arenaBytes=2 * MIB).start().attach(row_bytes=BIG, rows=64)
    b = pool.node("b").start().attach(row_bytes=BIG, rows=64)
    b.engine.serve(prompt("there", 4))
    a.until_sees(b)
    a.until("the verdict", lambda status: status.probe.state not in ("", "pending"))  # until then a quarter is all
    # a second session of the engine, whose client never commits: its copies keep their slots
    same = {name: a.engine.attach_header[name] for name in ("engine", "format")}
    with closing(a.raw_session(row_bytes=BIG, **same)) as holder:
        for one in holder.receive().descriptors:
            os.close(one)
        keys = engine_keys(prompt("held", 16))
        for job in (1, 2):
            pairs = b"".join(key + bytes(len(key)) for key in keys[8 * job - 8 : 8 * job])
            holder.send({"verb": "store", "job": job, "rows": list(range(8))}, pairs)
            answer = holder.receive().header
            assert answer == {"verb": "copied", "job": job, "whole": job == 1, "stored": 8 if job == 1 else SLOTS - 8}
        before = a.status()
        assert (before.arena.blocks, before.arena.used_bytes) == (0, SLOTS * BIG)

        assert a.engine.serve(prompt("here", 4)) == Served(computed=4)
        assert a.engine.serve(prompt("there", 4)) == Served(computed=4)
        status = a.status()
        assert status.misses == {"never_published": 4, "no_room": 4}
        # one job of the holder, and both prompts of the engine
        assert status.counters["stores_without_room"] == 3
        assert (status.arena.blocks, "demand_in" in status.transfers) == (0, False)
    a.until("free", lambda status: status.arena.used_bytes == 0)
    for name in ("here", "there"):
        assert a.engine.serve(prompt(name, 4)) == Served(host=4)  # and offered again
    a.until_blocks(8)
    a.engine.forget()
    assert a.engine.serve(prompt("here", 4)) == Served(pool=4)
    b.until_sees(a)
    assert b.engine.serve(prompt("here", 4)) == Served(pool=4)


def test_promotions_leave_half_of_the_host_pool_to_what_is_computed_and_the_rest_is_a_miss_by_name(
    pool: AgentPool,
) -> None:
    a = pool.joined("a")
    b = pool.node("b").start().attach(rows=16)
    a.engine.serve(prompt("long", 14))
    b.until_sees(a)
    assert b.engine.serve(prompt("long", 14)) == Served(pool=8, computed=6)
    # what finds no room is known before it is moved
    assert b.until("told", lambda status: status.misses).misses == {"no_room": 6}
    assert b.status().transfers["demand_in"].blocks == 8
    b.engine.forget()
    assert b.engine.serve(prompt("long", 14)[: 8 * 4 + 1]) == Served(pool=8)


@contextmanager
def no_more_descriptors(node: Node) -> Iterator[None]:
    """The node's worker keeps those that it has and gets no other."""
    worker = node.replica.worker_pid()
    limits = resource.prlimit(worker, resource.RLIMIT_NOFILE)
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (3, limits[1]))
    # a thread that waits in accept() has its descriptor already: somebody must come for it first
    with (
        socket.create_connection(("127.0.0.1", node.replica.peer_port)),
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as engine,
    ):
        engine.connect(node.socket_path)
        try:
            yield
        finally:
            resource.prlimit(worker, resource.RLIMIT_NOFILE, limits)


def test_a_worker_without_descriptors_serves_whom_it_has_and_others_again_when_there_are_some(pool: AgentPool) -> None:
    a, b = pool.all_joined("ab")
    names = ["stored", "new", "asked", "bare"]
    a.engine.serve(prompt("stored", BLOCKS))
    b.until_sees(a)
    incarnation = a.status().incarnation
    with no_more_descriptors(a):
        a.engine.forget()
        assert a.engine.serve(prompt("stored", BLOCKS)) == Served(pool=BLOCKS)
        assert a.engine.serve(prompt("new", BLOCKS)) == Served(computed=BLOCKS)
        assert b.engine.serve(prompt("stored", BLOCKS)) == Served(computed=BLOCKS)
        assert a.ready()
        a.close_engines()
        a.begin_attach()
        assert a.engine.serve(prompt("bare", BLOCKS)) == Served(computed=BLOCKS)
        with pytest.raises(OSError, match="timed out"):
            get(f"http://127.0.0.1:{a.replica.worker_port}/status", 0.5)
        assert a.engine.session.attached is None
    missed = b.status().misses
    assert sum(missed.values()) == BLOCKS and set(missed) <= {"deadline", "directory_unreachable"}
    wait_for("attached", lambda: a.engine.session.attached, 20, 0.02)
    status = a.status()
    assert (status.incarnation, status.counters["accepts_failed"] > 0) == (incarnation, True)
    for name in names:
        assert a.engine.serve(prompt(name, BLOCKS)).equal
    b.until_sees(a)
    assert b.engine.serve(prompt("new", BLOCKS)) == Served(pool=BLOCKS)
    a.until("the engine's health", lambda status: status.engine_healthy and status.attached)
