"""Own processes that stand still, and a members file full of nonsense: requests are answered all the same."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from agent_pool import AgentPool, Node
from bad_peer import ROW, BadPeer, keys_in
from patched_agent import stop_in_a_store
from process_use import stands_still
from replica import wait_for
from standin_engine import Served, prompt

from kvpool_agent.peer import frames

BLOCKS = 6


@contextlib.contextmanager
def standing_still(node: Node) -> Iterator[None]:
    """The node's worker does not run inside; the supervisor may kill it if that lasts."""
    worker = node.replica.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)


def attached_again(node: Node) -> None:
    wait_for("attached", lambda: node.engine.session.attached, 20, 0.02)


def test_a_worker_that_stands_still_in_the_middle_of_a_load_costs_the_request_its_deadline(pool: AgentPool) -> None:
    node = pool.node("a", loading={"deadlineSeconds": 2.0}).start().attach(store_seconds=1.0)
    peer = BadPeer(node.status().format, node.replica.pool)
    middle, go_on = threading.Event(), threading.Event()

    def stops_in_the_middle(peer: BadPeer, sock: socket.socket, message: frames.AnyMessage, tail: bytes) -> None:
        keys = keys_in(tail)
        for index, key in enumerate(keys):
            if index == 3:
                middle.set()
                assert go_on.wait(20)
            sock.sendall(peer.block(index, key))
        sock.sendall(frames.encode(frames.FetchEnd()))

    with contextlib.closing(peer):
        tokens = peer.knows("p", BLOCKS)
        peer.answers[frames.Fetch] = stops_in_the_middle
        node.replica.pool.members.write_text(f"{peer.address}\n")
        incarnation = node.until("the peer", lambda s: s.peers and s.peers[0].live).incarnation
        served: list[Served] = []
        request = threading.Thread(target=lambda: served.append(node.engine.serve(tokens)))
        request.start()
        assert middle.wait(10)
        with standing_still(node):
            go_on.set()
            # the engine computes at its own deadline and gives the store up at its own; only then the worker runs
            request.join(30)
            assert not request.is_alive()
        assert served == [Served(computed=BLOCKS)]
        # the late blocks are whole and right, or not there; the engine takes all from the arena or offers it again
        attached_again(node)
        node.until("its end", lambda s: s.counters.get("fetch_deadline") == 1 or s.incarnation != incarnation)
        assert node.engine.serve(tokens) == Served(host=BLOCKS)
        node.until_blocks(BLOCKS)
        node.engine.forget()
        assert node.engine.serve(tokens) == Served(pool=BLOCKS)


@pytest.mark.parametrize("rows", [0, 3])
def test_a_worker_that_stands_still_in_the_middle_of_a_store_publishes_nothing_of_it(
    pool: AgentPool, rows: int
) -> None:
    a = pool.node("a", loading={"deadlineSeconds": 0.5})
    stop = stop_in_a_store(a.replica, rows)
    a.start().attach(store_seconds=1.0)
    b = pool.joined("b")
    incarnation, worker = a.status().incarnation, a.replica.worker_pid()
    stop.touch()
    try:
        # what is copied after the engine has given the store up may be another prompt's, as here it is
        assert a.engine.serve(prompt("p", BLOCKS)) == Served(computed=BLOCKS)
        wait_for("the worker stands still", lambda: stands_still(worker), 20, 0.01)
        a.engine.overwrite()
        a.engine.forget()
    finally:
        stop.unlink()
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)
    attached_again(a)
    status = a.until(
        "the late store's end", lambda s: s.counters.get("stores_forgotten") or s.incarnation != incarnation
    )
    assert (status.arena.blocks, status.arena.used_bytes) == (0, 0)
    assert a.engine.serve(prompt("p", BLOCKS)) == Served(computed=BLOCKS)
    a.until_blocks(BLOCKS)
    b.until_sees(a)
    assert b.engine.serve(prompt("p", BLOCKS)) == Served(pool=BLOCKS)


NONSENSE: dict[str, Callable[[Node], bytes]] = {
    "dead": lambda _: b"127.0.0.1:1\n[::1]:1\n",
    "own": lambda node: f"127.0.0.1:{node.replica.peer_port}\n".encode(),
    "garbage": lambda _: (
        b"\xff\xfe\x00\n:\n:::\nhost\nhost:port\n127.0.0.1:99999999\n" + b"x" * 5000 + b":7\n# no\n-1:-1\n"
    ),
    "an-engine": lambda node: f"127.0.0.1:{node.engine.port}\n".encode(),  # speaks HTTP
    "empty": lambda _: b"",
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    made = AgentPool(tmp_path_factory.mktemp("members"))
    try:
        a, b = made.all_joined("ab")
        yield a, b
    finally:
        made.stop()


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_among_the_members_costs_nothing_and_without_members_all_is_computed(
    pair: tuple[Node, Node], nonsense: str
) -> None:
    a, b = pair
    members, lines = a.replica.pool.members, NONSENSE[nonsense](b)
    real = f"127.0.0.1:{a.replica.peer_port}\n".encode()
    names = [f"{nonsense}-{n}" for n in range(2)]
    for name in names:
        a.engine.serve(prompt(name, BLOCKS))
    a.until("stored", lambda s: s.arena.used_bytes == s.arena.blocks * ROW and s.arena.blocks % (2 * BLOCKS) == 0)

    members.write_bytes(lines)
    b.until("no source", lambda s: not any(peer.live for peer in s.peers))
    before = b.status().misses.get("never_published", 0)
    assert b.engine.serve(prompt(names[0], BLOCKS)) == Served(computed=BLOCKS)
    b.until("counted", lambda s: s.misses.get("never_published", 0) - before == BLOCKS)

    members.write_bytes(lines + real)
    b.until_sees(a)
    assert b.engine.serve(prompt(names[1], BLOCKS)) == Served(pool=BLOCKS)
