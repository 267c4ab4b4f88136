"""The fidelity canary: what was loaded is computed as well; whoever's blocks change an answer is no source any more.

The stand-in's likeliest tokens follow from which of a prompt's blocks hold other bytes than computing gives.
"""

from collections.abc import Callable

from agent_pool import AgentPool, Node
from standin_engine import Served, engine_keys, prompt

ALWAYS = {"intervalSeconds": 0.001}  # a comparison for every hit that comes while there is none
ASKED = 3  # requests of a comparison
BLOCKS = 4


def wrong_for(name: str) -> Callable[[bytes], bytes]:
    """Rows of this prompt's blocks are others; the stand-in's rows begin with their key."""
    keys = set(engine_keys(prompt(name, BLOCKS)))

    def layout(row: bytes) -> bytes:
        return row[: len(row) // 2] + bytes(len(row) // 2) if any(row.startswith(key) for key in keys) else row

    return layout


def probed(node: Node) -> Node:
    node.until("probed", lambda status: status.probe.state in ("alone", "same"))
    return node


def compared(node: Node, **counts: int) -> None:
    """Until so many comparisons have ended so."""
    node.until(
        f"compared {counts}", lambda s: {name: getattr(s.canary, name) for name in counts} == counts and s.canary.state
    )


def test_a_hit_that_is_right_compares_the_same_and_is_in_nobodys_counts(pool: AgentPool) -> None:
    a = probed(pool.node("a").start().attach(probe=True))
    b = probed(pool.node("b", canary=ALWAYS).start().until_sees(a).attach(probe=True))
    probes = b.engine.requests  # one, or more where its rows were late
    a.engine.serve(prompt("p", BLOCKS))
    assert b.until_sees(a).engine.serve(prompt("p", BLOCKS)) == Served(pool=BLOCKS)
    compared(b, same=1)
    status = b.status()
    assert (status.canary.variation, status.canary.noise, status.canary.distrusted) == (0.0, 0.0, [])
    assert b.engine.requests == probes + 1 + ASKED
    assert (status.hits.computed_blocks, status.hits.shared_blocks, status.misses) == (0, BLOCKS, {})
    assert {name: t.blocks for name, t in status.transfers.items() if name != "prewarm_in"} == {"demand_in": BLOCKS}
    # what its own engine holds by then is no hit on another's, and neither is what it has computed
    assert b.engine.serve(prompt("p", BLOCKS)) == Served(host=BLOCKS)
    assert b.engine.serve(prompt("q", BLOCKS)) == Served(computed=BLOCKS)
    b.until_blocks(2 * BLOCKS)
    b.engine.forget()
    assert b.engine.serve(prompt("q", BLOCKS)) == Served(pool=BLOCKS)
    assert b.engine.requests == probes + 1 + ASKED + 3


def test_a_member_whose_blocks_change_the_answer_is_no_source_any_more_and_another_one_is(pool: AgentPool) -> None:
    a = probed(pool.node("a").start().attach(probe=True, layout=wrong_for("bad")))
    b = probed(pool.node("b", canary=ALWAYS).start().until_sees(a).attach(probe=True))
    probes = b.engine.requests  # one, or more where its rows were late
    c = probed(pool.node("c").start().until_sees(a).attach(probe=True))
    assert a.engine.serve(prompt("bad", BLOCKS)) == Served(computed=BLOCKS)
    a.engine.serve(prompt("good", BLOCKS))
    assert c.engine.serve(prompt("other", BLOCKS)) == Served(computed=BLOCKS)
    b.until_sees(a, c)
    assert b.engine.serve(prompt("bad", BLOCKS)) == Served(pool=BLOCKS, equal=False)
    compared(b, differs=1)
    status, member = b.status(), a.status().member
    assert status.canary.distrusted == [member]
    assert status.canary.variation > 0.01 > status.canary.noise == 0.0
    assert b.engine.requests == probes + 1 + 2 * ASKED, "a difference counts when it is found twice"
    assert [event.detail["members"] for event in b.events("canary_differs")] == [member]
    assert {peer.member: peer.breaker for peer in status.peers} == {member: "distrusted", c.status().member: "closed"}
    assert status.arena.blocks == 0, "what came from there is dropped"
    # all of it is computed, and what the third one has is loaded
    assert b.engine.serve(prompt("good", BLOCKS)) == Served(computed=BLOCKS)
    assert b.status().misses == {"distrusted": BLOCKS}
    assert b.engine.serve(prompt("other", BLOCKS)) == Served(pool=BLOCKS)
    compared(b, differs=1, same=1)
    # a worker that starts anew over the same arena is the same member
    a.until_restarted(a.kill_worker())
    a.until("attached", lambda s: s.attached)
    a.engine.serve(prompt("more", BLOCKS))
    b.until_sees(a)
    assert b.engine.serve(prompt("more", BLOCKS)) == Served(computed=BLOCKS)


def test_an_engine_that_gives_no_answer_to_compare_says_so_and_loads(pool: AgentPool) -> None:
    a = pool.joined("a")
    b = pool.joined("b", canary=ALWAYS)
    b.loads_from(a, "p", BLOCKS)
    compared(b, not_run=1)
    assert b.status().canary.detail == "the engine's port answered 404"
    b.loads_from(a, "q", BLOCKS)
