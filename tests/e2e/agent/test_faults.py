"""Agents die, sources vanish, clients break their word: requests are served all the same, and nothing wrong is."""

import os
import signal
import threading
import time

from agent_pool import AgentPool
from replica import MIB, wait_for
from standin_engine import Served, engine_keys, prompt

ROW = 4096


def test_what_came_before_a_source_died_in_the_middle_is_kept_and_the_rest_is_computed(pool: AgentPool) -> None:
    row, blocks = 2 * MIB, 64
    arena = {"arenaBytes": 2 * blocks * row}
    a = pool.node("a", **arena).start().attach(row_bytes=row, rows=blocks)
    b = pool.node("b", **arena).start().attach(row_bytes=row, rows=4 * blocks)
    for attempt in range(8):
        a.engine.serve(prompt(f"p{attempt}", blocks))
        b.until_sees(a).until_knows(prompt(f"p{attempt}", blocks))
        before = b.status().transfers
        had = before["demand_in"].blocks if "demand_in" in before else 0
        served: list[Served] = []
        asking = threading.Thread(
            target=lambda n=attempt, out=served: out.append(b.engine.serve(prompt(f"p{n}", blocks)))
        )
        worker = a.replica.worker_pid()
        asking.start()
        wait_for(
            "first bytes",
            lambda had=had: (t := b.status().transfers.get("demand_in")) and t.blocks > had,
            10,
            0.0005,
        )
        os.kill(worker, signal.SIGSTOP)
        came = b.status().transfers["demand_in"].blocks - had
        if came < blocks - 8:  # those may be on their way in the sockets
            break
        os.kill(worker, signal.SIGCONT)
        asking.join()
    else:
        raise AssertionError("the source was never caught in the middle")
    os.kill(worker, signal.SIGKILL)
    asking.join()
    came = b.status().transfers["demand_in"].blocks - had
    assert 0 < came < blocks
    assert served == [Served(pool=came, computed=blocks - came)]
    assert set(b.status().misses) <= {"transfer_failed", "deadline", "never_published"}
    assert b.status().misses["transfer_failed"] == blocks - came


def test_a_source_that_hangs_costs_the_deadline_and_no_more(pool: AgentPool) -> None:
    a = pool.joined("a")
    b = pool.joined("b", loading={"deadlineSeconds": 0.5})
    a.engine.serve(prompt("p", 8))
    b.until_sees(a)
    worker = a.replica.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    try:
        assert b.engine.serve(prompt("p", 8)) == Served(computed=8)
        assert b.status().misses == {"deadline": 8}
    finally:
        os.kill(worker, signal.SIGCONT)


def test_what_a_client_never_commits_is_not_published_and_its_slots_are_free_again(pool: AgentPool) -> None:
    a = pool.node("a").start()
    keys = engine_keys(prompt("p", 5))
    channel = a.raw_session()
    granted = channel.receive()
    for one in granted.descriptors:
        os.close(one)
    pairs = b"".join(key + parent for key, parent in zip(keys, [bytes(36), *keys], strict=False))
    for job in (1, 2):
        channel.send({"verb": "store", "job": job, "rows": [0, 1, 2, 3, 4]}, pairs)
        assert channel.receive().header == {"verb": "copied", "job": job, "whole": True, "stored": 5}
    assert (a.status().arena.blocks, a.status().arena.used_bytes) == (0, 10 * ROW)
    channel.send({"verb": "forget", "job": 1})
    a.until("forgotten", lambda status: status.arena.used_bytes == 5 * ROW)
    channel.send({"verb": "lookup", "plan": 1, "lacks": [[0, 5]], "room": 8}, b"".join(keys))
    plan = channel.receive().header
    assert plan == {"verb": "plan", "plan": 1, "hits": [], "seconds": plan["seconds"]}
    channel.close()
    status = a.until("gone", lambda status: not status.attached)
    assert (status.arena.blocks, status.arena.used_bytes) == (0, 0)
    assert status.counters["stores_forgotten"] == 2


def test_an_engine_whose_agent_stops_computes_without_an_error_and_attaches_to_the_next_one(pool: AgentPool) -> None:
    a = pool.joined("a", loading={"deadlineSeconds": 60.0})
    assert a.engine.serve(prompt("p", 6)) == Served(computed=6)
    a.until_blocks(6)
    a.replica.stop()
    wait_for("loss seen", lambda: a.engine.session.attached is None, 20, 0.01)
    a.engine.forget()
    started = time.monotonic()
    assert a.engine.serve(prompt("p", 6)) == Served(computed=6)
    assert time.monotonic() - started < 30.0  # no wait for an agent that is not there
    a.replica.start_agent()
    wait_for("attached again", lambda: a.engine.session.attached, 20, 0.02)
    assert a.engine.serve(prompt("p", 6)) == Served(host=6)
    a.until_blocks(6)
