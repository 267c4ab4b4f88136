"""A member that floods another one, and an engine's container that floods its agent: others are served on, and each
bound that was hit is counted."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_pool import AgentPool, Node, block_name
from authority import member_uri, write_identity
from process_use import use_of
from replica import LOOPBACK, MIB, wait_for
from standin_engine import Served, engine_keys, prompt

from kvpool_agent.engine_port.server import MAX_SESSIONS
from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import Connection, PeerError
from kvpool_agent.peer.shares import CONNECTIONS, HANDSHAKES
from kvpool_agent.policy.purposes import default_purposes
from kvpool_client import wire

ELSEWHERE = "127.0.0.9"  # the address that the flood comes from
BLOCKS, MORE, FETCHES, SECONDS = 6, 20, 16, 20.0
# of one member that floods: 64 connections with a header and what TLS keeps for each, four requests that are answered
MEMORY = 48 * MIB
# the bounds are as they ship, but for times that a test would wait for
QUICK = "from kvpool_agent.engine_port import server; server.FRAME_SECONDS = 1.0; server.FIRST_FRAME_SECONDS = 1.0"


class Flood:
    """Connections of one member, greeted, from an address of its own."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.open: list[Connection] = []

    def sock(self) -> socket.socket:
        address = LOOPBACK, self._node.replica.peer_port
        return socket.create_connection(address, timeout=SECONDS, source_address=(ELSEWHERE, 0))

    def greet(self) -> bool:
        """Whether one connection more was taken."""
        connection = Connection(self.sock())
        connection.settimeout(SECONDS)
        try:
            connection.send(frames.Hello(list(frames.VERSIONS), "demo", "flood", "inc"))
            assert isinstance(connection.receive()[0], frames.Welcome)
            connection.send(frames.Ping())  # who has too many is told so by the end of the connection
            connection.receive()
        except PeerError:
            connection.close()
            return False
        self.open.append(connection)
        return True

    def close(self) -> None:
        for connection in self.open:
            connection.close()


@pytest.fixture
def pool(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[AgentPool]:
    """In clear, so that one process can be many members; inside TLS, where a test asks for that, the name is the
    certificate's."""
    tls = getattr(request, "param", False)
    made = AgentPool(tmp_path, tls=tls, patient=tls)  # a handshake computes, on a machine that others keep busy
    yield made
    made.stop()


@pytest.fixture
def joined(pool: AgentPool) -> Iterator[tuple[Node, Node, Flood]]:
    """A member that computed, one that did not, and a third that floods the first."""
    source, asker = pool.all_joined("ab")
    flood = Flood(source)
    yield source, asker, flood
    flood.close()


def counted(node: Node, word: str) -> int:
    return node.status().counters.get(word, 0)


def test_a_member_with_too_many_connections_is_cut_at_its_share(joined: tuple[Node, Node, Flood]) -> None:
    source, asker, flood = joined
    assert sum(flood.greet() for _ in range(CONNECTIONS + MORE)) == CONNECTIONS
    assert counted(source, "bound_member_connections") == MORE
    asker.loads_from(source, "connections", BLOCKS)
    flood.close()
    wait_for("places again", lambda: Flood(source).greet(), SECONDS, 0.1)


@pytest.mark.parametrize("pool", [True, False], ids=["inside TLS", "in clear"], indirect=True)
def test_connections_that_say_nothing_take_no_places_of_other_addresses(joined: tuple[Node, Node, Flood]) -> None:
    source, asker, flood = joined
    silent = [flood.sock() for _ in range(HANDSHAKES + MORE)]
    source.until("the bound", lambda s: s.counters.get("bound_address_handshakes") == MORE)
    asker.loads_from(source, "handshakes", BLOCKS)
    source.until("their end", lambda s: s.counters.get("handshakes_failed") == HANDSHAKES)
    assert counted(source, "tls_refused_peer_handshake") == (HANDSHAKES if source.replica.pool.tls else 0)
    for sock in silent:
        sock.close()


@pytest.mark.parametrize("tls", [True, False], ids=["inside TLS", "in clear"])
def test_a_member_that_asks_without_pause_leaves_the_others_their_loads(tmp_path: Path, tls: bool) -> None:
    """All of its connections ask for the largest lists of keys. What the flooded one's memory grows by is bounded."""
    pool = AgentPool(tmp_path, tls=tls)
    source, asker = pool.all_joined("ab")
    member = [sys.executable, str(Path(__file__).parents[1] / "flooding_member.py")]
    command = [*member, str(source.replica.peer_port), source.status().format, str(CONNECTIONS)]
    if tls:
        certificate, key = pool.pool.authority.leaf(member_uri("demo", "flood-uid"))
        write_identity(tmp_path / "flood", certificate, key, pool.pool.authority.certificate)
        command.append(str(tmp_path / "flood"))
    before = use_of(source).anonymous
    paths = os.pathsep.join(str(Path(__file__).parents[3] / part) for part in ("agent", "operator"))
    with subprocess.Popen(command, env={"PYTHONPATH": paths}, stdout=subprocess.PIPE) as flooding:
        try:
            assert flooding.stdout is not None and flooding.stdout.readline() == b"flooding\n"
            assert counted(source, "bound_member_requests") > 0
            assert (counted(source, "connections_in_clear") == 0) is tls
            for number in range(3):
                asker.loads_from(source, f"requests {number}", BLOCKS)
            assert use_of(source).anonymous - before < MEMORY
        finally:
            flooding.kill()
            misses = asker.status().misses
            pool.stop()
    assert not misses


def test_a_member_that_holds_streams_leaves_one_to_others(pool: AgentPool) -> None:
    """It asks for blocks and does not read them: more than fits between two sockets."""
    source, asker = (pool.node(name, arenaBytes=40 * MIB).start().attach(row_bytes=MIB, rows=24) for name in "ab")
    tokens, others = prompt("held", 16), prompt("others", BLOCKS)
    source.engine.serve(tokens)
    source.engine.serve(others)
    asker.until_sees(source)
    fingerprint, flood = source.status().format, Flood(source)
    keys = b"".join(block_name(key, fingerprint) for key in engine_keys(tokens))
    try:
        assert all(flood.greet() for _ in range(FETCHES))
        for connection in flood.open:
            connection.send(frames.Fetch(bytes.fromhex(fingerprint), "demand", 60.0), keys)
        streams = default_purposes()["demand"].sending.streams
        source.until("the bound", lambda s: s.counters.get("bound_demand_out_streams") == FETCHES - (streams - 1))
        assert asker.engine.serve(others) == Served(pool=BLOCKS)
        assert counted(source, "bound_demand_out_streams") == FETCHES - (streams - 1)
    finally:
        flood.close()


def test_an_engine_that_begins_frames_and_opens_sessions_without_end_is_served_on(pool: AgentPool) -> None:
    node = pool.node("a").patched(QUICK).start().attach()
    tokens = prompt("engine", BLOCKS)
    node.engine.serve(tokens)
    node.until_blocks(BLOCKS)
    with contextlib.closing(node.raw_session(format=node.engine.attach_header["format"])) as begun:
        for one in begun.receive().descriptors:
            os.close(one)
        begun._socket.sendall(wire.encode({"verb": "release", "lease": 1})[:9])  # and never the rest
        node.until("the late frame", lambda s: s.counters.get("frames_late") == 1)
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(MAX_SESSIONS - 1 + MORE)]
    for sock in silent:
        sock.connect(node.socket_path)
    node.until("sessions over the bound", lambda s: s.counters.get("bound_sessions") == MORE)
    node.engine.forget()
    assert node.engine.serve(tokens) == Served(pool=BLOCKS)
    node.until("their end", lambda s: s.counters.get("frames_late") == MAX_SESSIONS)
    for sock in silent:
        sock.close()
    node.until("places again", lambda _: node.raw_session().receive().verb == "refused")
