"""A changed configuration file is taken over by agents that run; a pause loads and stores nothing."""

import json

from agent_pool import AgentPool, until_in_force
from standin_engine import Served, prompt

from kvpool_contract.config import digest_of

ROW = 4096
NOW = {"targetPercent": 100, "deadlineSeconds": 60.0, "attachGraceSeconds": 60.0}


def test_a_pause_makes_ready_at_once_loads_and_stores_nothing_and_ends_without_a_restart(pool: AgentPool) -> None:
    a, b = pool.all_joined("ab")
    a.engine.serve(prompt("hot", 6))
    a.until_blocks(6)
    b.until_sees(a)
    incarnation = b.status().incarnation
    until_in_force(b, paused=True, generation=3)
    paused = b.until_state("Ready(degraded)", "paused")
    assert paused.config.generation == 3
    assert b.engine.serve(prompt("hot", 6)) == Served(computed=6)
    told = b.until("stores let go", lambda status: status.counters.get("stores_paused"))
    assert (told.arena.blocks, told.misses, told.transfers) == (0, {"paused": 6}, {})

    # a newcomer of a paused pool waits for nothing: not for its hot set, not even for its engine
    c = pool.node("c", paused=True, readiness=NOW).start()
    c.until_state("Ready(degraded)", "paused")
    c.until("latched", lambda _: c.ready())
    c.attach()
    assert c.engine.serve(prompt("hot", 6)) == Served(computed=6)
    assert c.status().transfers == {}

    until_in_force(b, paused=False)
    b.until_state("Ready(degraded)", "nothing_to_warm")
    b.engine.forget()
    assert b.engine.serve(prompt("hot", 6)) == Served(pool=6)
    assert b.status().incarnation == incarnation
    assert [event.word for event in b.status().events if "paused" in event.word] == ["paused", "unpaused"]

    until_in_force(c, paused=False)  # what was not begun is begun now
    warm = c.until_state("Ready(warm)").warm
    assert (warm.planned_blocks, warm.loaded_blocks) == (6, 6)
    assert c.status().transfers["prewarm_in"].blocks == 6


def test_bounds_deadlines_and_limits_are_taken_over_and_the_rest_is_named(pool: AgentPool) -> None:
    a = pool.joined("a")
    a.engine.serve(prompt("hot", 12))
    a.until_blocks(12)
    # a warm-up that would take minutes ends as soon as its bounds allow
    c = pool.joined("c", readiness=NOW, prewarm={"maxBytesPerSecond": 64, "maxStreams": 1})
    c.until_state("Warming")
    until_in_force(c, prewarm={"maxStreams": 4}, readiness={**NOW, "targetPercent": 50})
    c.until_state("Ready(warm)")
    # and one whose deadline is lowered ends by it
    d = pool.joined("d", readiness=NOW, prewarm={"maxBytesPerSecond": 64, "maxStreams": 1})
    d.until_state("Warming")
    until_in_force(d, readiness={**NOW, "deadlineSeconds": 0.0})
    d.until_state("Ready(degraded)", "warm_deadline")

    seconds = a.engine.side._plans.load_deadline
    incarnation = a.status().incarnation
    told = until_in_force(a, loading={"deadlineSeconds": 25.0}, arenaBytes=8 << 20, engine={"port": 1}, later={"x": 1})
    assert told.config.needs_new_pods == ["arenaBytes", "engine.port"]
    assert told.unknown_config_fields == ["later"]
    a.until("engine told", lambda _: a.engine.side._plans.load_deadline == 25.5 != seconds)
    assert (told.arena.limit_bytes, a.status().incarnation, a.status().attaches) == (4 << 20, incarnation, 1)


def test_a_file_that_vanishes_or_breaks_changes_nothing_also_for_the_next_worker(pool: AgentPool) -> None:
    a = pool.joined("a")
    a.engine.serve(prompt("hot", 6))
    a.until_blocks(6)
    path = a.replica.folder / "agent.json"
    good = digest_of(path.read_bytes())
    a.replica.config["prewarm"] = {"maxStreams": 0}
    path.write_text(json.dumps(a.replica.config))
    told = a.until("names it", lambda status: status.config.reason)
    assert (told.config.reason, told.config.hash) == ("config_invalid", good)
    assert told.config.problem == "configuration field prewarm.maxStreams: 0 is below 1; raise it"
    path.unlink()
    gone = a.until("gone", lambda status: "can't be read" in status.config.problem)
    killed = a.kill_worker()
    again = a.until_restarted(killed)
    assert (again.config, again.arena.blocks) == (gone.config, 6)
    a.until("attached", lambda status: status.attached)
    assert a.ready()
    del a.replica.config["prewarm"]
    path.write_text(json.dumps(a.replica.config))
    a.until("well again", lambda status: not status.config.reason and status.config.hash == good)
