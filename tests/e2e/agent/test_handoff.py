"""A loaded block costs one copy in the engine's process, and no byte of it more."""

import collections

import pytest
from agent_pool import AgentPool
from standin_engine import Served, prompt

from kvpool_client import loader

BLOCKS = 24
ROW = 4096


def test_a_block_of_another_replica_is_copied_once_in_the_engines_process(
    pool: AgentPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pool.all_joined("ab")
    copied: collections.Counter[int] = collections.Counter()
    copy = loader.copy

    def counted(target: int, source: int, length: int) -> None:
        copied[length] += 1
        copy(target, source, length)

    monkeypatch.setattr(loader, "copy", counted)
    known = prompt("known", BLOCKS)
    assert a.engine.serve(known) == Served(computed=BLOCKS)
    a.until_blocks(BLOCKS)
    assert copied == {}, "a store is copied by the agent"
    b.until_sees(a)
    assert b.engine.serve(known) == Served(pool=BLOCKS)
    assert copied == {ROW: BLOCKS}
    # again, from the own arena
    b.engine.forget()
    assert b.engine.serve(known) == Served(pool=BLOCKS)
    assert copied == {ROW: 2 * BLOCKS}
