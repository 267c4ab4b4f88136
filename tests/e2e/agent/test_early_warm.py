"""Warming begins with the agent: the hot set is in before the engine has attached, and the attach has to prove it."""

from contextlib import closing

from agent_pool import AgentPool, Node, until_in_force
from standin_engine import Served, prompt

from kvpool_contract.status import AgentStatus

ROW, HOT = 4096, 12
STRICT = {"targetPercent": 100, "deadlineSeconds": 60.0, "attachGraceSeconds": 60.0}
ONE, TWO = "revision-1", "revision-2"
SLOW = {"maxBytesPerSecond": 64 << 10}  # a block of the larger ones in a second: the test does something meanwhile


def started(pool: AgentPool, name: str, template: str, **agent: object) -> Node:
    node = pool.node(name, readiness=STRICT, **agent)
    node.replica.agent_environment["KVPOOL_TEMPLATE"] = template
    return node.start()


def source(pool: AgentPool, name: str, template: str, blocks: int = HOT, **engine: object) -> Node:
    """A ready member whose hot set is the prompt of its name."""
    node = started(pool, name, template).attach(**engine)
    node.engine.serve(prompt(name, blocks))
    node.until("ready", lambda status: status.state.startswith("Ready"))
    node.until_blocks(blocks)
    return node


def warm_before_attach(node: Node, blocks: int = HOT) -> AgentStatus:
    return node.until("hot set in", lambda s: s.warm.loaded_blocks == blocks and "warm_end" in words(s))


def words(status: AgentStatus) -> list[str]:
    return [event.word for event in status.events]


def test_the_hot_set_is_in_before_the_engine_attaches_and_readiness_follows_without_a_byte(pool: AgentPool) -> None:
    a = source(pool, "a", ONE)
    c = started(pool, "c", ONE)
    before = warm_before_attach(c)  # the barrier: no engine attaches before this
    assert (before.state, before.attached, before.format) == ("Starting", False, a.status().format)
    assert not c.ready()
    assert words(before) == ["format_expected", "warm_begin", "warm_end"]
    assert (before.transfers["prewarm_in"].blocks, before.transfers["prewarm_in"].bytes) == (HOT, HOT * ROW)
    c.attach()
    c.until_state("Ready(warm)")
    ready = c.until("the event of it", lambda status: words(status)[-1:] == ["ready"])
    assert words(ready) == ["format_expected", "warm_begin", "warm_end", "attached", "ready"]
    assert (ready.transfers, ready.warm.planned_blocks) == (before.transfers, HOT)
    assert ready.incarnation == before.incarnation
    assert c.engine.serve(prompt("a", HOT)) == Served(pool=HOT)
    assert c.status().transfers == before.transfers


def test_an_engine_of_another_format_discards_it_all_says_so_and_is_warmed_anew(pool: AgentPool) -> None:
    source(pool, "a", ONE)
    source(pool, "b", TWO, 5, model="other")
    c = started(pool, "c", ONE)
    before = warm_before_attach(c)
    c.attach(model="other")
    ready = c.until_state("Ready(warm)")
    (discarded,) = c.events("warm_discarded")
    assert discarded.detail == {"format": before.format, "bytes": HOT * ROW}
    assert ready.counters["warm_discarded_bytes"] == HOT * ROW
    assert ready.format != before.format
    assert (ready.transfers["prewarm_in"].blocks, ready.warm.planned_blocks, ready.arena.blocks) == (5, 5, 5)
    assert c.engine.serve(prompt("b", 5)) == Served(pool=5)
    assert c.engine.serve(prompt("a", HOT)) == Served(computed=HOT)
    # who follows neither expects the same again nor tells it twice
    again = c.until_restarted(c.kill_worker())
    assert not {"format_expected", "warm_discarded"} & set(words(again))
    c.until("attached", lambda status: status.attached)


def test_members_of_another_template_say_nothing_and_warming_begins_with_the_attach(pool: AgentPool) -> None:
    a = source(pool, "a", TWO)
    c, control = started(pool, "c", ONE), started(pool, "d", TWO)
    c.until_sees(a)
    warm_before_attach(control)
    untouched = c.status()
    assert (untouched.transfers, words(untouched), untouched.format) == ({}, [], "")
    c.attach()
    ready = c.until_state("Ready(warm)")
    assert words(ready) == ["attached", "warm_begin", "warm_end", "ready"]
    assert ready.transfers["prewarm_in"].blocks == HOT


def test_an_attach_in_the_middle_goes_on_with_what_has_begun_and_its_deadline_counts_from_there(
    pool: AgentPool,
) -> None:
    row, blocks = 64 << 10, 24
    source(pool, "a", ONE, blocks, row_bytes=row)
    c = started(pool, "c", ONE, prewarm=SLOW)
    c.until("begun", lambda status: "warm_begin" in words(status))
    c.attach(row_bytes=row)
    until_in_force(c, prewarm={})
    ready = c.until_state("Ready(warm)")
    told = [word for word in words(ready) if word in ("warm_begin", "attached", "warm_end", "ready")]
    assert told == ["warm_begin", "attached", "warm_end", "ready"]
    assert ready.transfers["prewarm_in"].blocks == blocks


def test_a_second_engine_that_is_refused_meanwhile_does_not_end_the_warm_up_of_the_first(pool: AgentPool) -> None:
    row, blocks = 64 << 10, 24
    source(pool, "a", ONE, blocks, row_bytes=row)
    c = started(pool, "c", ONE, prewarm=SLOW)
    c.until("begun", lambda status: "warm_begin" in words(status))
    c.attach(row_bytes=row)
    c.until("the attach counts", lambda status: status.state != "Starting")
    with closing(c.raw_session(row_bytes=row)) as second:
        assert second.receive().header["reason"] == "other_format"
    assert "warm_end" not in words(c.status())
    until_in_force(c, prewarm={})
    status = warm_before_attach(c, blocks)
    assert (status.state, status.reason, status.attached) == ("Ready(degraded)", "other_format", True)
