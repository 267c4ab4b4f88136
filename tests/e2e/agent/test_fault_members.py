"""Clocks that jump, agents of different versions, members that come and go under load: no request notices."""

import contextlib
import os
import signal
import time
from pathlib import Path

from agent_pool import AgentPool, Node
from replica import wait_for
from standin_engine import Served, prompt
from under_load import Load

BLOCKS = 6
DAY = 86_400.0
CLOCK = """
import time
real = time.time
def shifted():
    with open({path!r}) as file:
        return real() + float(file.read())
time.time = shifted
"""
VERSIONS = "from kvpool_agent.peer import frames\nframes.VERSIONS = {versions}\n"


def set_clock(path: Path, seconds: float) -> None:
    new = path.with_suffix(".new")
    new.write_text(str(seconds))
    new.rename(path)


def test_a_wall_clock_that_jumps_ends_no_lease_no_session_and_no_membership(
    pool_in_clear: AgentPool, tmp_path: Path
) -> None:
    pool = pool_in_clear  # certificates do follow the wall clock (tests/e2e/security/test_clocks.py)
    clock = tmp_path / "clock"
    set_clock(clock, 0)
    a = pool.node("a").patched(CLOCK.format(path=str(clock))).start().attach()
    b = pool.joined("b")
    a.until("latched", lambda _: a.ready())
    incarnation = a.status().incarnation
    for i, days in enumerate((400, -4000, 0)):
        stored, fetched = prompt(f"a {i}", BLOCKS), prompt(f"b {i}", BLOCKS)
        a.engine.serve(stored)
        b.engine.serve(fetched)
        a.until_sees(b)
        b.until_sees(a)
        set_clock(clock, days * DAY)
        assert a.engine.serve(fetched) == Served(pool=BLOCKS)
        assert b.engine.serve(stored) == Served(pool=BLOCKS)
        a.close_engines()
        a.attach()
        jumped = a.until("attached", lambda s, i=i: s.attaches == i + 2).events[-1].at - time.time()
        assert abs(jumped - days * DAY) < DAY  # the agent's clock did jump
        assert a.engine.serve(stored) == Served(pool=BLOCKS)
    status = a.status()
    assert (status.incarnation, status.state, status.reason) == (incarnation, "Ready(degraded)", "nothing_to_warm")
    assert set(status.misses) == {"never_published"}
    for node in (a, b):
        assert [(peer.live, peer.breaker, peer.failures) for peer in node.status().peers] == [(True, "closed", 0)]


def test_agents_of_different_versions_compute_and_share_once_one_of_them_speaks_both(pool: AgentPool) -> None:
    a, b = pool.joined("a"), pool.node("b").patched(VERSIONS.format(versions=(99,))).start().attach()
    for node in (a, b):
        node.engine.serve(prompt(node.replica.name, BLOCKS))
    for node, other in ((a, b), (b, a)):
        node.until("refused", lambda s: [p for p in s.peers if "refused: peer_version" in p.error and not p.live])
        assert node.engine.serve(prompt(other.replica.name, BLOCKS)) == Served(computed=BLOCKS)
        assert node.status().misses == {"never_published": 2 * BLOCKS}
    b.replica.stop()
    b.patched(VERSIONS.format(versions="(99, *frames.VERSIONS)")).start()
    wait_for("attached", lambda: b.engine.session.attached, 20, 0.02)
    for node, other in ((a, b), (b, a)):
        other.loads_from(node, f"later {node.replica.name}", BLOCKS)


def test_one_member_joins_and_one_is_killed_under_load_and_every_request_gets_its_bytes(pool: AgentPool) -> None:
    a, b, victim = pool.all_joined("abv")
    prompts = [prompt(f"p{i}", BLOCKS) for i in range(8)]
    with contextlib.ExitStack() as loads:
        under_way = [
            loads.enter_context(Load(node, lambda n, k=k: prompts[(n + k) % len(prompts)]))
            for k, node in enumerate((a, b, victim))
        ]
        wait_for("requests", lambda: all(len(load.served) > len(prompts) for load in under_way), 20, 0.01)
        process = victim.replica.agent_process
        assert process is not None
        newcomer = pool.node("n").start()
        newcomer.begin_attach()
        os.killpg(process.pid, signal.SIGKILL)
        newcomer.until("ready", lambda status: status.state.startswith("Ready"))
        assert newcomer.engine.serve(prompts[0]).equal
        so_far = len(under_way[2].served)
        gone = f"127.0.0.1:{victim.replica.peer_port}"
        for node in (a, b):
            node.until("gone", lambda s: [p for p in s.peers if p.address == gone and not p.live and p.error])
        wait_for("requests without an agent", lambda: len(under_way[2].served) > so_far + 3, 20, 0.01)
        assert under_way[2].served[-1] == Served(computed=BLOCKS)
    process.wait()
    victim.replica.start_agent()
    wait_for("attached again", lambda: victim.engine.session.attached, 20, 0.02)
    for node in (a, b, newcomer, victim):
        shared_by_all(node, [other for other in (a, b, newcomer, victim) if other is not node])


def shared_by_all(giver: Node, takers: list[Node]) -> None:
    tokens = prompt(f"of {giver.replica.name}", BLOCKS)
    assert giver.engine.serve(tokens) == Served(computed=BLOCKS)
    for taker in takers:
        taker.until_sees(giver)
        assert taker.engine.serve(tokens) == Served(pool=BLOCKS)
