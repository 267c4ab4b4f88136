"""One misbehaving peer, one table: every fault it can commit, what the request is answered, and what is counted.

For each fault: the request gets right bytes, what was loaded and what was computed are exact, each miss has its one
reason, nothing wrong stays in the arena, and when the peer behaves again it is a source again. The engine is never
touched. A hang would be the stand-in engine's failure: it waits for an answer and not for ever.
"""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_pool import AgentPool, Node
from bad_peer import BadPeer
from peer_faults import BLOCKS, FAULTS, HANDSHAKES, REFUSED, Fault, says
from standin_engine import Served, prompt

from kvpool_agent.peer import frames
from kvpool_contract.status import Peer

# of a load: where a fault ends with it, and where nothing waits for it
WAITED_SECONDS, NEVER_SECONDS = 3.0, 15.0
# a lookup ends with the load's deadline alone, and a breaker is open for longer than a few requests take
CALM = """
import sys
if "kvpool_agent.worker" in sys.orig_argv:
    from kvpool_agent.directory import locate
    from kvpool_agent.policy import breaker
    locate.LOCATE_SECONDS = 30.0
"""
LONG_PAUSE = CALM + "    breaker.FIRST_PAUSE_SECONDS = 5.0\n"
TOLD = ("fetch_transfer_failed", "fetch_deadline", "fetch_busy", "fetch_asked_again", "tag_failures", "breaker_opened")


@contextlib.contextmanager
def asker_and_peer(folder: Path, seconds: float, code: str = CALM) -> Iterator[tuple[Node, BadPeer]]:
    """An agent with its engine, and the peer beside it."""
    pool = AgentPool(folder, arenaBytes=8 << 20)
    try:
        node = pool.node("asker", loading={"deadlineSeconds": seconds}).patched(code).start().attach()
        with contextlib.closing(BadPeer(node.status().format, node.replica.pool)) as peer:
            yield node, peer
    finally:
        pool.stop()


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, BadPeer]]:
    """One for the whole table: what one fault leaves behind would fail the next."""
    with asker_and_peer(tmp_path_factory.mktemp("patient"), NEVER_SECONDS) as made:
        yield made


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, BadPeer]]:
    with asker_and_peer(tmp_path_factory.mktemp("impatient"), WAITED_SECONDS) as made:
        yield made


@pytest.fixture
def asker(patient: tuple[Node, BadPeer]) -> Node:
    return patient[0]


def list_members(node: Node, *peers: BadPeer) -> None:
    node.replica.pool.members.write_text("".join(f"{peer.address}\n" for peer in peers))


def seen(node: Node, peer: BadPeer, **fields: object) -> Peer:
    """The peer in the node's status, once it shows these."""

    def holds(found: Peer) -> bool:
        return all(getattr(found, name) == value for name, value in fields.items())

    status = node.until(f"{fields}", lambda s: any(p.address == peer.address and holds(p) for p in s.peers))
    return next(p for p in status.peers if p.address == peer.address)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_peer_that_misbehaves_costs_its_blocks_and_no_more(request: pytest.FixtureRequest, fault: Fault) -> None:
    asker, bad = request.getfixturevalue("impatient" if fault.reason == "deadline" else "patient")
    list_members(asker, bad)
    bad.answers.clear()  # of a test that has failed
    tokens, later = (bad.knows(f"{fault.name}-{n}", BLOCKS) for n in range(2))
    bad.answers[fault.at] = fault.answer
    seen(asker, bad, live=True)
    before = asker.status()

    assert asker.engine.serve(tokens) == Served(pool=fault.loaded, computed=BLOCKS - fault.loaded)
    after = asker.status()
    missed = {r: n - before.misses.get(r, 0) for r, n in after.misses.items() if n != before.misses.get(r, 0)}
    assert missed == ({fault.reason: BLOCKS - fault.loaded} if fault.reason else {})
    counted = {w: after.counters.get(w, 0) - before.counters.get(w, 0) for w in TOLD}
    assert {word: count for word, count in counted.items() if count} == fault.counters
    assert after.transfers.get("demand_out") is None
    if fault.at is frames.Fetch:  # a lookup's silence ends with the ping's, and this count with it
        peer = seen(asker, bad)
        state = "open" if peer.breaker == "half_open" else peer.breaker  # whose pause is over
        assert (state, peer.failures) == fault.breaker

    # what is kept is right, whoever sent it: the engine has nothing and takes all from the arena
    fetches = bad.fetches
    asker.engine.forget()
    assert asker.engine.serve(tokens) == Served(pool=BLOCKS)
    assert bad.fetches == fetches

    bad.answers.clear()
    if fault.at is not frames.Fetch:
        bad.hang_up()
    asker.until(
        "a source", lambda s: [p for p in s.peers if p.address == bad.address and p.live and p.breaker != "open"]
    )
    assert asker.engine.serve(later) == Served(pool=BLOCKS)
    assert bad.fetches == fetches + 1
    assert (seen(asker, bad).breaker, seen(asker, bad).failures) == ("closed", 0)


def test_peers_that_fail_at_the_handshake_are_no_sources_and_named_each_with_its_error(asker: Node) -> None:
    peers = {name: BadPeer(asker.status().format, asker.replica.pool, f"{name}-uid") for name in HANDSHAKES}
    with contextlib.ExitStack() as stack:
        for name, peer in peers.items():
            stack.callback(peer.close)
            peer.answers[frames.Hello] = HANDSHAKES[name][0]
        tokens = {name: peer.knows(name, 2) for name, peer in peers.items()}
        list_members(asker, *peers.values())
        for name, peer in peers.items():
            error = HANDSHAKES[name][1]
            status = asker.until(
                name, lambda s, p=peer, e=error: [q for q in s.peers if q.address == p.address and e in q.error]
            )
            assert not any(found.live for found in status.peers)
        before = asker.status().misses.get("never_published", 0)
        for name in peers:
            assert asker.engine.serve(tokens[name]) == Served(computed=2)
        assert asker.status().misses["never_published"] - before == 2 * len(peers)
        assert sum(peer.fetches for peer in peers.values()) == 0
        later = {name: peer.knows(f"{name}-later", 2) for name, peer in peers.items()}
        for peer in peers.values():
            peer.answers.clear()
            peer.hang_up()
        for peer in peers.values():
            seen(asker, peer, live=True, breaker="closed", failures=0)
        for name, peer in peers.items():
            assert asker.engine.serve(later[name]) == Served(pool=2)
            assert peer.fetches == 1


def test_a_peer_that_fails_three_times_is_asked_no_more_and_again_after_its_pause(tmp_path: Path) -> None:
    with asker_and_peer(tmp_path, NEVER_SECONDS, LONG_PAUSE) as (asker, bad):
        list_members(asker, bad)
        fails_three_times(asker, bad)


def fails_three_times(asker: Node, bad: BadPeer) -> None:
    prompts = [bad.knows(f"again-{n}", 2) for n in range(5)]
    asked = []

    def fails(peer: BadPeer, sock: socket.socket, message: frames.AnyMessage, tail: bytes) -> None:
        asked.append(len(tail))
        raise ConnectionError

    bad.answers[frames.Fetch] = fails
    seen(asker, bad, live=True)
    for tokens in prompts[:3]:
        assert asker.engine.serve(tokens) == Served(computed=2)
    assert asker.engine.serve(prompts[3]) == Served(computed=2)
    after = asker.status()
    assert len(asked) == 3
    assert after.misses == {"transfer_failed": 6, "breaker_open": 2}
    assert after.counters["breaker_opened"] == 1
    bad.answers.clear()
    seen(asker, bad, live=True, breaker="half_open")
    assert asker.engine.serve(prompts[4]) == Served(pool=2)
    seen(asker, bad, breaker="closed", failures=0)


@pytest.mark.parametrize("next_one", ["member", "incarnation", "pool"])
def test_an_address_that_comes_to_somebody_else_is_not_used_as_the_old_one(asker: Node, next_one: str) -> None:
    first = BadPeer(asker.status().format, asker.replica.pool, "first-uid")
    list_members(asker, first)
    with contextlib.closing(first):
        tokens = [first.knows(f"{next_one}-{n}", 3) for n in range(2)]
        seen(asker, first, live=True, blocks=6)
        assert asker.engine.serve(tokens[0]) == Served(pool=3)
    second = BadPeer(
        first.fingerprint, asker.replica.pool, "second-uid" if next_one == "member" else "first-uid", first.port
    )
    with contextlib.closing(second):
        second.incarnation = "1"
        if next_one == "pool":
            second.answers[frames.Hello] = says(REFUSED)
            asker.until("refusal", lambda s: [p for p in s.peers if "other_pool" in p.error and not p.live])
            assert asker.engine.serve(tokens[1]) == Served(computed=3)
            assert second.fetches == 0
            return
        second.data = first.data
        seen(asker, second, live=True, member=second.member, incarnation=second.incarnation)
        assert asker.engine.serve(tokens[1]) == Served(pool=3)
        assert (first.fetches, second.fetches) == (1, 1)


def test_a_prompt_that_nobody_has_is_still_a_plain_miss_after_all_that(asker: Node) -> None:
    list_members(asker)
    asker.until("nobody", lambda s: not s.peers)
    before = asker.status().misses["never_published"]
    assert asker.engine.serve(prompt("nobody", BLOCKS)) == Served(computed=BLOCKS)
    assert asker.status().misses["never_published"] - before == BLOCKS
