"""A prompt that no member can know is answered at once, and none that a member holds is taken for one."""

from pathlib import Path

from agent_pool import PATIENT, AgentPool, Node
from replica import wait_for
from standin_engine import HYBRID, Served, prompt

BLOCKS = 6
PROMPTS = 8
# what others publish is not heard while the file is there
DEAF = (
    PATIENT
    + """
import os, time
from kvpool_agent.store import heads
told = heads.Union.told
def late(self, of, what):
    while ":" in of and os.path.exists({path!r}):
        time.sleep(0.01)
    told(self, of, what)
heads.Union.told = late
"""
)
OLD = "from kvpool_agent.peer import frames\nframes.VERSIONS = (2, 1)\n"
ASKED = ("plans", "lookups", "lookup_calls", "lookup_bytes")


def in_force(*nodes: Node) -> None:
    """With all of them: while one of them is new to another, there may be more to ask."""
    for node in nodes:
        node.until_sees(*(other for other in nodes if other is not node))
    for node in nodes:
        node.until("the filter is in force", lambda s: s.directory.head_filter)
        wait_for("told", lambda node=node: node.engine.side.heads.number, 20, 0.002)


def asked(node: Node) -> list[int]:
    counters = node.status().counters
    return [counters.get(word, 0) for word in ASKED]


def serve(node: Node, name: str) -> tuple[Served, int]:
    """How a prompt was served, and in how many steps its lookup was answered after the first."""
    steps: list[int] = []
    (served,) = node.engine.serve_together([prompt(name, BLOCKS)], preempt=lambda step: bool(steps.append(step)))
    return served, len(steps)


def test_an_unknown_prompt_costs_no_call_and_no_step_and_its_misses_are_counted(pool: AgentPool) -> None:
    a, b = pool.all_joined("ab")
    in_force(a, b)
    before = asked(a)
    assert serve(a, "unknown") == (Served(computed=BLOCKS), 0)
    status = a.until("counted", lambda s: s.misses)
    assert (status.misses, status.counters["lookups_ruled_out"]) == ({"never_published": BLOCKS}, 1)
    assert asked(a) == before == [0] * len(ASKED)
    # and one that is known costs what it did
    b.until_sees(a)
    served, steps = serve(b, "unknown")
    assert served == Served(pool=BLOCKS)
    assert steps > 0
    assert asked(b)[:3] == [1, 1, 1]


def test_with_windows_too(pool: AgentPool) -> None:
    a, b = (pool.node(name).start().attach(groups=HYBRID) for name in "ab")
    in_force(a, b)
    before = asked(a)
    served, steps = serve(a, "unknown")
    assert (served.computed, steps) == (BLOCKS, 0)
    a.until("counted", lambda s: s.misses == {"never_published": BLOCKS})
    assert asked(a) == before
    b.until_sees(a)
    assert serve(b, "unknown")[0].pool == BLOCKS


def test_what_a_member_publishes_is_hidden_for_no_longer_than_it_takes_to_tell_it(
    pool: AgentPool, tmp_path: Path
) -> None:
    deaf = tmp_path / "deaf"
    a, b = pool.joined("a"), pool.node("b").patched(DEAF.format(path=str(deaf))).start().attach()
    in_force(a, b)
    names = [f"p{n}" for n in range(PROMPTS)]
    deaf.touch()
    for name in names:
        assert a.engine.serve(prompt(name, BLOCKS)) == Served(computed=BLOCKS)
    a.until_blocks(PROMPTS * BLOCKS)
    # asked for in the time before a's word: as many as are asked for
    assert [serve(b, name) for name in names[:3]] == [(Served(computed=BLOCKS), 0)] * 3
    deaf.unlink()
    b.until_knows(*(prompt(name, BLOCKS) for name in names[3:]))
    # and after it: none
    assert [b.engine.serve(prompt(name, BLOCKS)) for name in names[3:]] == [Served(pool=BLOCKS)] * (PROMPTS - 3)
    assert b.status().misses == {"never_published": 3 * BLOCKS}


def test_in_the_usual_time_no_hit_is_lost(pool: AgentPool) -> None:
    a, b = pool.all_joined("ab")
    in_force(a, b)
    for n in range(PROMPTS):
        giver, taker = (a, b) if n % 2 else (b, a)
        assert giver.engine.serve(prompt(f"p{n}", BLOCKS)) == Served(computed=BLOCKS)
        taker.until_sees(giver)
        assert taker.engine.serve(prompt(f"p{n}", BLOCKS)) == Served(pool=BLOCKS)
    # what the engine does not hold any more, and its own agent does
    for node in (a, b):
        node.engine.forget()
        assert node.engine.serve(prompt("p0", BLOCKS)) == Served(pool=BLOCKS)


def test_with_a_member_that_does_not_tell_its_heads_every_prompt_is_asked_for_and_without_it_none(
    pool: AgentPool,
) -> None:
    a = pool.joined("a")
    in_force(a)
    old = pool.node("o").patched(OLD).start().attach()
    a.until_sees(old)
    a.until("it is not in force", lambda s: not s.directory.head_filter)
    wait_for("told", lambda: not a.engine.side.heads.number, 20, 0.002)
    before = asked(a)
    served, steps = serve(a, "unknown")
    assert served == Served(computed=BLOCKS)
    assert steps > 0
    assert [now - then for now, then in zip(asked(a), before, strict=True)][:3] == [1, 1, 1]
    old.engine.serve(prompt("old", BLOCKS))
    a.until_sees(old)
    assert a.engine.serve(prompt("old", BLOCKS)) == Served(pool=BLOCKS)
    old.replica.stop()
    in_force(a)
    assert serve(a, "another")[1] == 0
