"""Every way in which an engine does not join has its reason in the status, and never keeps the pod from serving."""

import time

import pytest
from agent_pool import AgentPool, Node
from replica import MIB, wait_for
from standin_engine import Served, StandInEngine, prompt

from kvpool_client import session

ROW = 4096


def test_an_arena_of_fewer_than_eight_blocks_refuses_by_name_and_the_engine_serves_bare(pool: AgentPool) -> None:
    a = pool.node("a", arenaBytes=MIB).start().begin_attach(row_bytes=MIB // 7, rows=16)
    status = a.until_state("Ready(degraded)", "arena_too_small")
    a.until("latched", lambda _: a.ready())
    assert (status.attached, status.attaches) == (False, 0)
    assert a.engine.serve(prompt("p", 4)) == Served(computed=4)
    assert [event.detail for event in a.events("attach_refused")] == [{"reason": "arena_too_small"}]


def test_a_client_of_another_engine_port_version_is_refused_by_name(pool: AgentPool) -> None:
    a = pool.node("a").start()
    channel = a.raw_session(versions=[1, 99])
    assert channel.receive().header == {"verb": "refused", "reason": "engine_port_version"}
    channel.close()
    a.until_state("Ready(degraded)", "engine_port_version")


@pytest.mark.parametrize(
    "wrong",
    [
        {"row_bytes": 0},
        {"rows": -1},
        {"rows": "8"},
        {"hash_bytes": 1000},
        {"row_bytes": 2 << 30},
        {"format": "text"},
        {"rows": 9},  # more than the descriptor holds
    ],
    ids=str,
)
def test_a_geometry_that_cannot_be_true_is_refused_by_name(shared_node: Node, wrong: dict[str, object]) -> None:
    channel = shared_node.raw_session(**wrong)
    assert channel.receive().header == {"verb": "refused", "reason": "geometry_refused"}
    channel.close()
    shared_node.until_state("Ready(degraded)", "geometry_refused")


def test_one_format_with_two_block_sizes_is_refused_by_name(pool: AgentPool) -> None:
    a = pool.joined("a")
    channel = a.raw_session(format=a.engine.attach_header["format"], row_bytes=2 * ROW, rows=4)
    assert channel.receive().header == {"verb": "refused", "reason": "geometry_refused"}
    channel.close()


def test_a_second_engine_of_another_format_is_refused_by_name_and_the_fields_that_differ(pool: AgentPool) -> None:
    a = pool.joined("a")
    a.begin_attach(model="other")
    a.until_state("Ready(degraded)", "other_format")
    assert a.status().attaches == 1
    assert [event.detail for event in a.events("attach_refused")] == [
        {"reason": "other_format", "detail": "model: other here, m there"}
    ]
    assert a.engine.serve(prompt("p", 4)) == Served(computed=4)


def test_an_engine_that_comes_back_with_another_format_gets_a_new_worker(pool: AgentPool) -> None:
    a = pool.joined("a")
    a.engine.serve(prompt("p", 4))
    before = a.until_blocks(4)
    a.close_engines()
    a.until("detached", lambda status: not status.attached)
    a.attach(model="other")
    after = a.status()
    assert after.incarnation != before.incarnation
    assert (after.format != before.format, after.arena.blocks) == (True, 0)
    assert "recovered_blocks" not in after.counters


def test_an_engine_of_another_format_after_a_restart_gets_a_worker_that_recovers_nothing_of_the_old_one(
    pool: AgentPool,
) -> None:
    a = pool.joined("a")
    a.engine.serve(prompt("p", 4))
    a.until_blocks(4)
    a.until("latched", lambda _: a.ready())
    a.close_engines()
    a.until("detached", lambda status: not status.attached)
    recovered = a.until_restarted(a.kill_worker())
    assert (recovered.arena.blocks, recovered.reason) == (4, "nothing_to_warm")
    a.attach(model="other")
    after = a.until_state("Ready(degraded)", "arena_lost")
    assert after.incarnation != recovered.incarnation
    assert (after.arena.blocks, after.events[0].word) == (0, "restarted")
    # no worker after it goes back to the old format
    assert a.engine.serve(prompt("q", 5)).equal
    a.until_blocks(5)
    again = a.until_restarted(a.kill_worker())
    assert (again.format, again.arena.blocks, again.reason) == (after.format, 5, "arena_lost")
    a.until("attached", lambda status: status.attached)
    assert a.status().incarnation == again.incarnation


def test_a_client_that_is_there_before_its_agent_attaches_by_itself(pool: AgentPool) -> None:
    a = pool.node("a")
    a.begin_attach()
    assert a.engine.serve(prompt("p", 4)) == Served(computed=4)
    a.start()
    wait_for("attach", lambda: a.engine.session.attached, 20, 0.02)
    a.until_state("Ready(degraded)", "nothing_to_warm")
    # computed before there was an agent, offered again now
    assert a.engine.serve(prompt("p", 4)) == Served(host=4)
    a.until_blocks(4)


def test_a_bare_start_is_told_with_its_reason_also_when_the_agent_comes_later(pool: AgentPool) -> None:
    a = pool.node("a")
    session.report_bare(a.socket_path, "no_shm_room", "5 bytes free")
    a.start()
    a.until_state("Ready(degraded)", "no_shm_room")
    a.until("latched", lambda _: a.ready())
    assert [event.detail for event in a.events("bare")] == [{"reason": "no_shm_room"}]


def test_a_healthy_engine_that_never_attaches_turns_ready_not_attached_after_the_grace_time(pool: AgentPool) -> None:
    readiness = {"attachGraceSeconds": 1.0}
    a = pool.node("a", readiness=readiness).start()
    # it serves health on the engine's port and looks for an agent elsewhere
    lost = StandInEngine(str(a.replica.folder / "nobody.sock"), port=a.replica.engine_port).start()
    a.engines.append(lost)
    assert not a.ready()
    status = a.until_state("Ready(degraded)", "not_attached")
    assert status.engine_healthy and not status.attached
    a.until("latched", lambda _: a.ready())
    # and one that attaches late is served all the same
    a.close_engines()
    a.attach().until_state("Ready(degraded)", "nothing_to_warm")


def test_no_grace_time_passes_while_the_engine_is_not_healthy(pool: AgentPool) -> None:
    a = pool.node("a", readiness={"attachGraceSeconds": 0.0}).start()
    status = a.until("running for longer than a poll takes", lambda s: time.time() - s.started_at > 1.5)
    assert (status.state, status.engine_healthy) == ("Starting", False)
    assert not a.ready()
