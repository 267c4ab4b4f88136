"""The probe: an engine that computes something else under the same format is found before its first load."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agent_pool import PROBING_ONCE, AgentPool, Node
from standin_engine import BLOCK_TOKENS, HASH_BYTES, KEY_BYTES, Served, StandInEngine, prompt

from kvpool_client.groups import FULL, WINDOW, Group

WARM_BLOCKS = 6


def halves_swapped(row: bytes) -> bytes:
    """K for V: the same numbers at other places."""
    return row[len(row) // 2 :] + row[: len(row) // 2]


def verdict(node: Node, state: str) -> Node:
    node.until(f"probe {state}", lambda status: status.probe.state == state)
    return node


def test_the_first_is_alone_and_the_next_is_compared_with_it_by_one_request_and_one_block(pool: AgentPool) -> None:
    a = verdict(pool.node("a").start().attach(probe=True), "alone")
    assert a.engine.serve(prompt("p", 6)) == Served(computed=6)
    a.until_blocks(6)
    b = verdict(pool.node("b").patched(PROBING_ONCE).start().attach(probe=True).until_sees(a), "same")
    status = b.until_state("Ready(warm)")
    assert status.probe.member == a.status().member
    assert status.probe.blocks == a.status().probe.blocks
    assert len(status.probe.blocks) == 1
    # one prompt of one block was computed for it, by either; it is no request of anybody's
    assert b.engine.requests == 1
    assert (status.hits.computed_blocks, status.misses) == (0, {})
    assert {name: t.blocks for name, t in a.status().transfers.items()} == {"store_in": 6, "prewarm_out": 6}
    assert b.engine.serve(prompt("p", 6)) == Served(pool=6)
    # a is compared with b before it loads
    assert b.engine.serve(prompt("q", 4)) == Served(computed=4)
    a.until_sees(b)
    assert a.engine.serve(prompt("q", 4)) == Served(pool=4)
    assert a.status().probe.state == "same"
    assert a.status().probe.member == status.member


def test_an_engine_with_another_layout_of_the_same_size_is_refused_by_name_and_takes_and_gives_nothing(
    pool: AgentPool,
) -> None:
    a = verdict(pool.node("a").start().attach(probe=True), "alone")
    assert a.engine.serve(prompt("p", WARM_BLOCKS)) == Served(computed=WARM_BLOCKS)
    a.until_blocks(WARM_BLOCKS)
    b = pool.node("b").start().begin_attach(probe=True, layout=halves_swapped)
    status = b.until_state("Ready(degraded)", "probe_mismatch")
    b.until("latched and without a session", lambda s: b.ready() and not s.attached)
    assert status.probe.member == a.status().member
    # bare from now on: right bytes for its requests, and not one block from it, nor to it, also after it has come again
    b.until("refused", lambda s: any(e.word == "attach_refused" for e in s.events))
    assert b.events("attach_refused")[0].detail == {"reason": "probe_mismatch"}
    assert b.engine.serve(prompt("p", WARM_BLOCKS)) == Served(computed=WARM_BLOCKS)
    assert b.engine.serve(prompt("q", 4)) == Served(computed=4)
    after = b.status()
    assert (after.attaches, after.hits.shared_blocks, after.transfers.get("store_in")) == (1, 0, None)
    a.until("sees b", lambda s: [(p.live, p.blocks) for p in s.peers] == [(True, 0)])
    assert a.engine.serve(prompt("q", 4)) == Served(computed=4)
    # a new start of the engine, with the right layout, is another engine
    b.close_engines()
    verdict(b.attach(probe=True), "same").until_sees(a)
    assert b.engine.serve(prompt("p", WARM_BLOCKS)) == Served(pool=WARM_BLOCKS)
    b.until_state("Ready(degraded)", "nothing_to_warm")


# the window's layers are fewer: what they leave of a row is whatever lay there before
PARTLY = (Group(0, FULL, 0, BLOCK_TOKENS), Group(1, WINDOW, BLOCK_TOKENS, BLOCK_TOKENS, whole=False))


def other_rest(group: int) -> Callable[[bytes], bytes]:
    """Rows of this group end otherwise; the stand-in's rows begin with their key."""

    def layout(row: bytes) -> bytes:
        of_group = row[HASH_BYTES:KEY_BYTES] == group.to_bytes(4, "big")
        return row[: len(row) // 2] + bytes(len(row) // 2) if of_group else row

    return layout


def test_of_a_group_that_does_not_fill_its_rows_nothing_is_compared_and_of_the_other_all(pool: AgentPool) -> None:
    a = verdict(pool.node("a").start().attach(probe=True, groups=PARTLY), "alone")
    assert len(a.status().probe.blocks) == 1
    a.engine.serve(prompt("p", 4))
    a.until_blocks(8)
    b = pool.node("b").start().until_sees(a)
    verdict(b.attach(probe=True, groups=PARTLY, layout=other_rest(1)), "same")
    b.close_engines()
    b.begin_attach(probe=True, groups=PARTLY, layout=other_rest(0))
    b.until_state("Ready(degraded)", "probe_mismatch")


def test_of_two_that_were_alone_the_one_that_finds_the_other_first_is_refused(pool: AgentPool) -> None:
    a, b = pool.all_started("ab")
    # neither knows the other yet when its engine comes
    a.replica.pool.members.write_text("")
    for node in (a, b):
        node.until("nobody else", lambda status: not status.peers)
    verdict(a.attach(probe=True), "alone")
    verdict(b.attach(probe=True, layout=halves_swapped), "alone")
    assert a.engine.serve(prompt("p", 4)) == Served(computed=4)
    a.until_blocks(4)
    addresses = [f"127.0.0.1:{node.replica.peer_port}\n" for node in (a, b)]
    a.replica.pool.members.write_text("".join(addresses))
    b.until_sees(a)
    assert b.engine.serve(prompt("p", 4)) == Served(computed=4)
    b.until_state("Ready(degraded)", "probe_mismatch")
    assert b.status().misses == {"probe_mismatch": 4}


def test_an_engine_that_cannot_be_asked_shares_by_its_fields_and_says_so(pool: AgentPool) -> None:
    a, b = pool.all_joined("ab")
    assert a.engine.serve(prompt("p", 4)) == Served(computed=4)
    b.until_sees(a.until_blocks(4) and a)
    assert b.engine.serve(prompt("p", 4)) == Served(pool=4)
    for node in (a, b):
        probe = node.status().probe
        assert (probe.state, probe.detail, probe.blocks) == ("not_run", "the engine's port answered 404", [])


@contextmanager
def silent(port: int) -> Iterator[None]:
    """Somebody who takes connections and never answers."""
    with socket.create_server(("127.0.0.1", port)) as server:
        kept: list[socket.socket] = []

        def take() -> None:
            while True:
                try:
                    kept.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=take, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for one in kept:
                one.close()


def test_until_the_verdict_nothing_is_loaded_and_what_is_stored_is_published_with_it(pool: AgentPool) -> None:
    a = pool.joined("a")
    assert a.engine.serve(prompt("p", 4)) == Served(computed=4)
    a.until_blocks(4)
    b = pool.node("b").start()
    with silent(b.replica.engine_port):
        b.engines.append(StandInEngine(b.socket_path).start())  # it answers on another port
        b.until("attached", lambda s: s.attached)
        b.until_sees(a)
        assert b.status().probe.state == "pending"
        assert b.engine.serve(prompt("p", 4)) == Served(computed=4)
        assert b.engine.serve(prompt("q", 3)) == Served(computed=3)
        pending = b.status()
        assert pending.misses == {"probe_pending": 7}
        assert pending.transfers.keys() <= {"prewarm_in"}
    b.until("a verdict", lambda s: s.probe.state == "not_run")
    assert b.until("published", lambda s: s.transfers.get("store_in")).transfers["store_in"].blocks == 3
    a.until_sees(b)
    assert a.engine.serve(prompt("q", 3)) == Served(pool=3)


def test_a_worker_that_is_killed_knows_its_engine_again_and_has_the_probes_block_again(pool: AgentPool) -> None:
    a = verdict(pool.node("a").start().attach(probe=True), "alone")
    assert a.engine.serve(prompt("p", 4)) == Served(computed=4)
    a.until_blocks(4)
    known, now = a.status().probe.blocks, time.monotonic()
    a.until("a beat with the verdict", lambda _: time.monotonic() > now + 0.5)
    a.until_restarted(a.kill_worker())
    a.until("attached", lambda s: s.attached)
    assert a.status().probe.state == "alone", "no second wait for an engine that is known"
    a.engine.forget()
    assert a.engine.serve(prompt("p", 4)) == Served(pool=4)
    a.until("the block again", lambda s: s.probe.blocks == known)
    b = pool.node("b").start().begin_attach(probe=True, layout=halves_swapped)
    b.until_state("Ready(degraded)", "probe_mismatch")
