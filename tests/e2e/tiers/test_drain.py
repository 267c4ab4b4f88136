"""Agents that are told to end hand over what they alone hold; the pool they leave goes on hitting as before."""

import os
import re
import signal
from typing import Any

import pytest
from agent_pool import AgentPool, Node
from standin_engine import Served, prompt
from under_load import Load

ROW, SLOTS = 16 << 10, 63  # an arena of 1 MiB
PROMPTS, BLOCKS, COLD = 3, 8, 9
DRAIN = {"drain": {"maxSeconds": 30}}


def end(node: Node) -> str:
    """As the kubelet ends a pod: the engine first, then its sidecar; what the agent has said at last."""
    node.close_engines()
    process = node.replica.agent_process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    return node.replica.log("agent", 100_000)


def handed_over(log: str) -> tuple[int, str]:
    """How many blocks, and what was left."""
    (found,) = re.findall(r"handed over (\d+) blocks; left: (.*)", log)
    return int(found[0]), found[1]


def hot(owner: int, number: int) -> list[int]:
    return prompt(f"hot {owner} {number}", BLOCKS)


def joined(pool: AgentPool, names: str, **agent: Any) -> list[Node]:
    return [node.attach(row_bytes=ROW) for node in pool.all_started(names, arenaBytes=1 << 20, **agent)]


@pytest.mark.parametrize("hands_over", [True, False])
def test_from_four_members_to_two_under_load_the_next_requests_hit_as_before(pool: AgentPool, hands_over: bool) -> None:
    """Requests come by prefix affinity: each prompt's blocks lie at one member. Every arena is full of prompts that
    came once."""
    nodes = joined(pool, "abcd", **(DRAIN if hands_over else {}))
    for owner, node in enumerate(nodes):
        for number in range(COLD):
            assert node.engine.serve(prompt(f"cold {owner} {number}", 7)).computed == 7
        for number in range(PROMPTS):
            assert node.engine.serve(hot(owner, number)) == Served(computed=BLOCKS)
        for number in range(PROMPTS):
            assert node.engine.serve(hot(owner, number)) == Served(host=BLOCKS)
        node.until("full", lambda status: status.arena.blocks == SLOTS)
    for node in nodes:
        node.until_sees(*(other for other in nodes if other is not node))
    before = rate(nodes)
    a, b, c, d = nodes
    with Load(a, lambda n: hot(0, n % PROMPTS)) as at_a, Load(b, lambda n: hot(1, n % PROMPTS)) as at_b:
        logs = [end(c), end(d)]
        for node in (a, b):
            node.until("they are gone", lambda status: sum(peer.live for peer in status.peers) == 1)
            if hands_over:  # to whom, the leavers alone know
                node.until_knows(*(hot(owner, number) for owner in range(4) for number in range(PROMPTS)))
    assert {one.pool for load in (at_a, at_b) for one in load.served} == {BLOCKS}
    after = rate([a, b])
    print(f"hit rate of {4 * PROMPTS} requests with 4 members {before:.3f}, of the next with 2 {after:.3f}")
    if hands_over:
        # the second one hands on what it was given by the first one as well
        given, left = zip(*(handed_over(log) for log in logs), strict=True)
        assert left == ("none", "none")
        assert given[0] == PROMPTS * BLOCKS <= given[1]
        taken = [node.status().transfers["drain_in"].blocks for node in (a, b)]
        assert sum(taken) == 2 * PROMPTS * BLOCKS
        assert before == 1.0
        assert after >= 0.95
    else:
        assert "handed over" not in "".join(logs)
        assert (before, after) == (1.0, 0.5)


def rate(nodes: list[Node]) -> float:
    """Blocks that are hit of those of the hot prompts, each asked for once, at the member that it belongs to now."""
    hits = 0
    for node in nodes:
        node.engine.forget()
    for owner in range(4):
        for number in range(PROMPTS):
            served = nodes[owner % len(nodes)].engine.serve(hot(owner, number))
            assert served.equal
            hits += served.pool + served.host
    return hits / (4 * PROMPTS * BLOCKS)


def test_a_member_that_leaves_alone_says_what_is_left_and_ends_at_once(pool: AgentPool) -> None:
    (a,) = joined(pool, "a", **DRAIN)
    for expected in (Served(computed=BLOCKS), Served(host=BLOCKS)):
        assert a.engine.serve(hot(0, 0)) == expected
    a.until_blocks(BLOCKS)
    assert handed_over(end(a)) == (0, str({"no_receiver": BLOCKS}))


def test_who_stops_taking_is_given_no_more_and_the_agent_ends_within_its_time(pool: AgentPool) -> None:
    """The one receiver stands still: what it was offered is left, and the leaver does not wait for ever."""
    a, b = joined(pool, "ab", drain={"maxSeconds": 8})
    for expected in (Served(computed=BLOCKS), Served(host=BLOCKS)):
        assert a.engine.serve(hot(0, 0)) == expected
    a.until_blocks(BLOCKS)
    a.until_sees(b)
    worker = b.replica.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    try:
        blocks, left = handed_over(end(a))
    finally:
        os.kill(worker, signal.SIGCONT)
    assert blocks == 0
    assert left in (str({reason: BLOCKS}) for reason in ("failed", "no_receiver", "deadline"))
