"""Reasons of misses that no other suite provokes, each by a request of its own and counted to the block.

The table of all reasons and their tests stands in docs/guarantees.md.
"""

from agent_pool import AgentPool
from standin_engine import Served, prompt

BLOCKS = 6
# a predecessor's leases last until the test has asked: the next worker writes nothing as long
LONG_LEASES = """
import sys
if "kvpool_agent.worker" in sys.orig_argv:
    from kvpool_agent.store import slab
    slab.LEASE_SECONDS = 600.0
"""
# plans of this agent end in an error that nobody has foreseen
BROKEN_PLANS = """
import sys
if "kvpool_agent.worker" in sys.orig_argv:
    from kvpool_agent.directory.locate import Locator
    def holders(*_, **__):
        raise ZeroDivisionError
    Locator.holders = holders
"""


def test_just_restarted(pool: AgentPool) -> None:
    a = pool.joined("a")
    a.engine.serve(prompt("there", BLOCKS))
    b = pool.node("b", prewarm={"maxBytes": 0}).patched(LONG_LEASES).start().attach()
    b.engine.serve(prompt("own", 1))  # without a block of its own there is no cut to recover, and no lease
    b.until_blocks(1)
    b.until_restarted(b.kill_worker())
    b.until("attached again", lambda status: status.attached)
    b.until_sees(a).until_knows(prompt("there", BLOCKS))

    assert b.engine.serve(prompt("there", BLOCKS)) == Served(computed=BLOCKS)
    status = b.status()
    assert (status.misses, status.transfers) == ({"just_restarted": BLOCKS}, {})


def test_unknown(pool: AgentPool) -> None:
    a = pool.joined("a")
    a.engine.serve(prompt("there", BLOCKS))
    b = pool.node("b", prewarm={"maxBytes": 0}).patched(BROKEN_PLANS).start().attach()
    b.until_sees(a).until_knows(prompt("there", BLOCKS))

    assert b.engine.serve(prompt("there", BLOCKS)) == Served(computed=BLOCKS)
    assert b.status().misses == {"unknown": BLOCKS}
