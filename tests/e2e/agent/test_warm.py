"""A newcomer is warm before it is ready: the hot set, whole and exact, within its bounds."""

import itertools
import os
import signal

import pytest
from agent_pool import AgentPool, Node, until_in_force
from replica import MIB
from standin_engine import Served, prompt

ROW = 4096
ENDS = [("Ready(degraded)", reason) for reason in ("warm_deadline", "warm_incomplete")]
STRICT = {"targetPercent": 100, "deadlineSeconds": 60.0, "attachGraceSeconds": 60.0}


def two_warm_members(pool: AgentPool) -> tuple[Node, Node]:
    """Prompt `hot` (12 blocks) was asked for three times, `cold` (9 blocks) once."""
    a, b = pool.all_joined("ab")
    a.engine.serve(prompt("hot", 12))
    a.engine.serve(prompt("hot", 12))
    a.until_blocks(12)
    b.until_sees(a)
    b.engine.serve(prompt("hot", 12))
    b.engine.serve(prompt("cold", 9))
    b.until("all finished", lambda status: status.hits.computed_blocks == 9)
    b.until_blocks(21)
    return a, b


def test_a_newcomer_holds_exactly_the_hot_set_before_it_is_ready_and_its_first_hot_request_moves_nothing(
    pool: AgentPool,
) -> None:
    two_warm_members(pool)
    c = pool.joined("c", readiness=STRICT)
    warm = c.until_state("Ready(warm)").warm
    assert (warm.planned_blocks, warm.loaded_blocks, warm.bytes) == (21, 21, 21 * ROW)
    assert c.status().arena.foreign_blocks == 21
    assert c.engine.serve(prompt("hot", 12)) == Served(pool=12)
    assert c.engine.serve(prompt("cold", 9)) == Served(pool=9)
    transfers = c.status().transfers
    assert (transfers["prewarm_in"].blocks, transfers["prewarm_in"].bytes) == (21, 21 * ROW)
    assert "demand_in" not in transfers
    (begun,), (ready,) = c.events("warm_begin"), c.events("ready")
    assert begun.detail["blocks"] == 21 and begun.at <= ready.at


def test_a_byte_budget_below_the_hot_set_takes_the_hottest_blocks_closed_under_prefixes(pool: AgentPool) -> None:
    two_warm_members(pool)
    c = pool.joined("c", readiness=STRICT, prewarm={"maxBytes": 15 * ROW + ROW // 2})
    warm = c.until_state("Ready(warm)").warm
    assert (warm.planned_blocks, warm.loaded_blocks) == (15, 15)
    assert c.engine.serve(prompt("hot", 12)) == Served(pool=12)
    assert "demand_in" not in c.status().transfers
    # the three other blocks of the budget are the beginning of the colder prompt
    assert c.engine.serve(prompt("cold", 9)) == Served(pool=9)
    assert c.status().transfers["demand_in"].blocks == 9 - 3


def test_a_warm_up_stays_below_its_rate(pool: AgentPool) -> None:
    row, blocks, rate = 64 << 10, 24, 1 * MIB
    a = pool.node("a").start().attach(row_bytes=row)
    a.engine.serve(prompt("hot", blocks))
    a.until_blocks(blocks)
    c = pool.node("c", readiness=STRICT, prewarm={"maxBytesPerSecond": rate}).start().attach(row_bytes=row)
    warm = c.until_state("Ready(warm)").warm
    assert (warm.loaded_blocks, warm.bytes) == (blocks, blocks * row)
    assert warm.bytes_per_second <= rate
    assert warm.seconds >= blocks * row / rate


def test_where_the_pool_blocks_a_slow_warm_up_holds_the_pod_back_and_one_that_stands_still_does_not(
    pool: AgentPool,
) -> None:
    row, blocks = 16 << 10, 200
    readiness = {**STRICT, "deadlineSeconds": 5.0, "onDeadline": "Block"}
    slow = {"maxBytesPerSecond": 4 * row, "maxStreams": 1}  # all of it would take most of a minute
    options = {"arenaBytes": 16 * MIB, "prewarm": slow}
    a = pool.node("a", arenaBytes=16 * MIB, prewarm={"sourceMaxStreams": 8}).start()
    a.attach(row_bytes=row, rows=2 * blocks)
    a.engine.serve(prompt("hot", blocks))
    a.until_blocks(blocks)
    c, e = (pool.node(name, readiness=readiness, **options).start().attach(row_bytes=row) for name in "ce")
    d = pool.node("d", readiness={**readiness, "onDeadline": "Degrade"}, **options).start().attach(row_bytes=row)
    # one that attached later and degrades is at its deadline: those that block go on
    late = d.until_state("Ready(degraded)", "warm_deadline").warm
    assert 0 < late.loaded_blocks < blocks
    for node in (c, e):
        assert node.status().state == "Warming"
        assert not node.ready()
    until_in_force(c, prewarm={})
    assert c.until_state("Ready(warm)").warm.loaded_blocks == blocks
    # all that hold a block of it stand still, and so do those who would start them anew
    stopping = [
        pid
        for node in (a, c, d)
        if node.replica.agent_process is not None
        for pid in (node.replica.agent_process.pid, node.replica.worker_pid())
    ]
    for pid in stopping:
        os.kill(pid, signal.SIGSTOP)
    try:
        # by the deadline, or because every source of what is missing has been given up: whichever comes first
        stopped = e.until("ends", lambda s: (s.state, s.reason) in ENDS).warm
        e.until("latched", lambda _: e.ready())
    finally:
        for pid in reversed(stopping):
            os.kill(pid, signal.SIGCONT)
    assert 0 < stopped.loaded_blocks < blocks


@pytest.mark.parametrize("order", list(itertools.permutations("abc"))[::2])
def test_replicas_of_an_empty_pool_turn_ready_at_once_and_wait_for_nobody(pool: AgentPool, order: str) -> None:
    nodes = dict(zip("abc", pool.all_started("abc"), strict=True))
    for name in order:
        assert not nodes[name].ready()
        nodes[name].attach().until_state("Ready(degraded)", "nothing_to_warm")
        nodes[name].until("latched", lambda _, name=name: nodes[name].ready())
    first, second, third = (nodes[name] for name in order)
    for before, after in ((first, second), (second, third)):
        (ready,), (attached,) = before.events("ready"), after.events("attached")
        assert ready.detail == {"state": "Ready(degraded)", "reason": "nothing_to_warm"}
        assert ready.at < attached.at
    assert all("prewarm_in" not in node.status().transfers for node in nodes.values())


def test_a_cohort_of_newcomers_that_asks_one_member_for_more_streams_than_it_has_is_warm_all_the_same(
    pool: AgentPool,
) -> None:
    row, blocks = 256 << 10, 48
    options = {"arenaBytes": 32 * MIB, "readiness": STRICT, "prewarm": {"maxStreams": 8}}
    a = pool.node("a", **options).start().attach(row_bytes=row)
    a.engine.serve(prompt("hot", blocks))
    a.until_blocks(blocks)
    newcomers = pool.all_started("cde", **options)
    for node in newcomers:
        node.begin_attach(row_bytes=row)
    for node in newcomers:
        warm = node.until_state("Ready(warm)").warm
        assert (warm.planned_blocks, warm.loaded_blocks, warm.bytes) == (blocks, blocks, blocks * row)
    assert newcomers[0].engine.serve(prompt("hot", blocks)) == Served(pool=blocks)
