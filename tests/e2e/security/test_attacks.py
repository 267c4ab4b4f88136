"""What a stranger, and a member that lies, can do to a running agent: refused, counted, and nobody else notices."""

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from agent_pool import AgentPool, Node
from authority import DAY, Authority, member_uri
from bad_peer import BadPeer
from peer_faults import sends
from replica import wait_for
from standin_engine import Served, block_bytes, engine_keys
from trusted import NAME, client_context, credentials, transport

from kvpool_agent.identity.credentials import Credentials
from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import PeerError
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.store.tag import tag_of

BLOCKS, WAIT = 6, 20.0
NOW = datetime.now(UTC)
INCARNATIONS: list[tuple[str, str]] = []  # of the workers before all of it
HELLO = frames.encode(frames.Hello(list(frames.VERSIONS), NAME, "stranger-uid", "inc"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    pool = AgentPool(tmp_path_factory.mktemp("attacks"), patient=True)
    a, b = pool.all_joined("ab")
    INCARNATIONS.append((a.status().incarnation, b.status().incarnation))
    yield a, b
    pool.stop()


def refusals(node: Node) -> dict[str, int]:
    return {word: n for word, n in node.status().counters.items() if word.startswith("tls_refused_")}


def connect(node: Node) -> socket.socket:
    return socket.create_connection(("127.0.0.1", node.replica.peer_port), timeout=WAIT)


def said(sock: socket.socket, *data: bytes) -> bytes:
    """What comes back for this until the other side closes."""
    found = b""
    with sock, contextlib.suppress(OSError):
        for part in data:
            sock.sendall(part)
        while part := sock.recv(4096):
            found += part
    return found


def leaf(node: Node, *uris: str, by: Authority | None = None, begin: datetime | None = None) -> Credentials:
    """Credentials with whatever is in them."""
    certificate, key = (by or node.replica.pool.authority).leaf(*uris, begin=begin)
    return dataclasses.replace(credentials(node.replica.pool, "stranger-uid"), certificate=certificate, key=key)


STRANGER = member_uri(NAME, "stranger-uid")
# what a client shows, and the counter of its refusal
CLIENTS: dict[str, tuple[Callable[[Node], Credentials | None], str]] = {
    "no certificate": (lambda _: None, "peer_no_certificate"),
    "wrong authority": (lambda n: leaf(n, STRANGER, by=Authority("wrong")), "peer_unknown_authority"),
    "expired": (lambda n: leaf(n, STRANGER, begin=NOW - 2 * DAY), "peer_certificate_expired"),
    "not yet valid": (lambda n: leaf(n, STRANGER, begin=NOW + DAY), "peer_certificate_not_yet_valid"),
    "other pool": (lambda n: leaf(n, member_uri("other", "stranger-uid")), "peer_other_pool"),
    "other namespace": (
        lambda n: leaf(n, member_uri(NAME, "stranger-uid", k8s_namespace="other")), "peer_other_k8s_namespace"
    ),
    "other cluster": (lambda n: leaf(n, member_uri(NAME, "stranger-uid", cluster="other")), "peer_other_cluster"),
    "another member's": (lambda n: leaf(n, member_uri(NAME, "b-uid")), "peer_other_member"),
    "no name": (lambda n: leaf(n), "peer_certificate_name"),
}  # fmt: skip
# a stranger that asks everything at once, without waiting to be let in
ASKED = HELLO + frames.encode(frames.Status()) + frames.encode(frames.Describe())
NO_FRAME = b"\xff" * 64


@pytest.mark.parametrize("who", CLIENTS)
def test_a_stranger_with_the_wrong_certificate_gets_no_frame_but_its_refusal(pair: tuple[Node, Node], who: str) -> None:
    a, b = pair
    made, word = CLIENTS[who]
    counter = f"tls_refused_{word}"
    # another member is one by what its hello says; all others are refused before a frame is read, whatever they send
    for data in (ASKED,) if who == "another member's" else (ASKED, NO_FRAME):
        before, failed = refusals(a), a.status().counters.get("handshakes_failed", 0)
        with contextlib.suppress(OSError):
            answer = said(client_context(made(a)).wrap_socket(connect(a)), data)
            assert answer in (b"", frames.encode(frames.Refused(word)))
        expected = {**before, counter: before.get(counter, 0) + 1}
        after = a.until("refused", lambda s, failed=failed: s.counters.get("handshakes_failed", 0) > failed)
        assert (refusals(a), after.counters["handshakes_failed"]) == (expected, failed + 1)
    if word.endswith(("expired", "valid")):
        assert (after.tls.state, after.tls.reason) == ("ok", word)
    b.loads_from(a, who, BLOCKS)  # nothing that was done before has harmed them


def test_the_same_client_with_a_certificate_of_its_own_is_a_member(pair: tuple[Node, Node]) -> None:
    a, _ = pair
    before = refusals(a)
    own = client_context(credentials(a.replica.pool, "stranger-uid"))
    with own.wrap_socket(connect(a)) as sock:
        sock.sendall(HELLO + frames.encode(frames.Status()))
        found = b""
        while b'"version":1' not in found:
            found += sock.recv(65536)
    assert b"a-uid" in found and refusals(a) == before


def test_an_older_tls_and_frames_in_clear_get_nothing(pair: tuple[Node, Node]) -> None:
    import ssl

    a, b = pair
    before = refusals(a)
    older = client_context(credentials(a.replica.pool, "b-uid"), maximum_version=ssl.TLSVersion.TLSv1_2)
    with pytest.raises(OSError):
        older.wrap_socket(connect(a))
    assert b"a-uid" not in said(connect(a), HELLO, frames.encode(frames.Ping()))
    words = ("tls_refused_peer_tls_version", "tls_refused_peer_not_tls")
    expected = {**before, **{word: before.get(word, 0) + 1 for word in words}}
    a.until("both refused", lambda _: refusals(a) == expected)
    a.loads_from(b, "downgrade", BLOCKS)


class Tap:
    """Between a client and an agent; remembers what the client has sent."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.sent = b""
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        near, _ = self._socket.accept()
        far = connect(self._node)
        threading.Thread(target=self._back, args=(far, near), daemon=True).start()
        with contextlib.suppress(OSError):
            while part := near.recv(65536):
                self.sent += part
                far.sendall(part)
            far.shutdown(socket.SHUT_WR)

    @staticmethod
    def _back(far: socket.socket, near: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := far.recv(65536):
                near.sendall(part)


@pytest.mark.parametrize("tls", [True, False])
def test_frames_that_were_recorded_are_no_use_to_anybody_inside_tls(tmp_path: Path, tls: bool) -> None:
    pool = AgentPool(tmp_path, tls=tls)
    try:
        a = pool.joined("a")
        tap = Tap(a)
        dialer = Dialer(Identity(NAME, "b-uid", "inc"), transport(pool.pool, "b-uid"))
        connection, welcome = dialer.handshake(tap.address)
        assert welcome.member == "a-uid"
        connection.close()
        again = said(connect(a), tap.sent)
        if tls:
            # the handshake's own secrets are others: what comes back is a server's first flight, and no frame
            a.until("refused", lambda s: s.counters.get("tls_refused_peer_handshake", 0) == 1)
            assert b"a-uid" not in again
        else:
            assert b"a-uid" in again
    finally:
        pool.stop()


# -- members that lie ----------------------------------------------------------------------------------


@pytest.fixture
def liar(pair: tuple[Node, Node]) -> Iterator[BadPeer]:
    a, _ = pair
    with contextlib.closing(BadPeer(a.status().format, a.replica.pool, "liar-uid")) as peer:
        listed = a.replica.pool.members.read_text()
        a.replica.pool.members.write_text(f"{listed}{peer.address}\n")
        yield peer
        a.replica.pool.members.write_text(listed)
    # another member may have told its address meanwhile: then it stays in the list for half a minute
    a.until("gone", lambda s: not any(one.address == peer.address and one.live for one in s.peers))


def asked(a: Node, liar: BadPeer, name: str) -> Served:
    tokens = liar.knows(name, BLOCKS)
    a.until("sees it", lambda s: any(p.address == liar.address and p.live and p.blocks == BLOCKS for p in s.peers))
    return a.engine.serve(tokens)


def test_who_announces_blocks_that_it_lacks_costs_one_question_and_is_named(
    pair: tuple[Node, Node], liar: BadPeer
) -> None:
    a, _ = pair
    misses = a.status().misses.get("evicted", 0)
    liar.answers[frames.Fetch] = sends()
    assert asked(a, liar, "lacks") == Served(computed=BLOCKS)
    assert (liar.fetches, a.status().misses["evicted"]) == (0, misses + BLOCKS)
    (peer,) = (one for one in a.status().peers if one.address == liar.address)
    assert (peer.member, peer.breaker, peer.failures) == ("liar-uid", "closed", 1)


def test_nobody_announces_in_the_name_of_another(pair: tuple[Node, Node]) -> None:
    a, _ = pair
    before = refusals(a).get("tls_refused_peer_other_member", 0)
    forger = Dialer(Identity(NAME, "b-uid", "inc"), transport(a.replica.pool, "liar-uid"))
    with pytest.raises(PeerError):
        forger.announce(f"127.0.0.1:{a.replica.peer_port}", {b"k" * 16: [b"k" * 16]}, [], WAIT, fresh=True)
    a.until("refused", lambda s: s.counters["tls_refused_peer_other_member"] == before + 1)
    # in its own name it may: what it says is a hint, of which the fetch tells the truth
    own = Dialer(Identity(NAME, "liar-uid", "inc"), transport(a.replica.pool, "liar-uid"))
    assert own.announce(f"127.0.0.1:{a.replica.peer_port}", {b"k" * 16: [b"k" * 16]}, [], WAIT, fresh=True) > 0
    own.close()


def test_bytes_that_do_not_match_their_tag_are_dropped_and_laid_to_their_sender(
    pair: tuple[Node, Node], liar: BadPeer
) -> None:
    a, _ = pair
    before = a.status().counters.get("tag_failures", 0)
    liar.answers[frames.Fetch] = sends("good 0", "altered 1")
    assert asked(a, liar, "altered") == Served(pool=1, computed=BLOCKS - 1)
    status = a.status()
    assert status.counters["tag_failures"] == before + 1
    assert [one.failures for one in status.peers if one.address == liar.address] == [1]


def test_a_member_that_lies_under_a_valid_tag_is_believed(pair: tuple[Node, Node], liar: BadPeer) -> None:
    """What no tag can show: that a member of the pool computed what it says. docs/security.md says so."""
    a, _ = pair
    tokens = liar.knows("poisoned", BLOCKS)
    key = next(iter(reversed(liar.data)))
    right = liar.data[key]
    liar.data[key] = bytes([right[0] ^ 1]) + right[1:]
    assert tag_of(key, memoryview(liar.data[key])) != tag_of(key, memoryview(right))
    assert right == block_bytes(engine_keys(tokens)[-1], len(right))
    a.until("sees it", lambda s: any(p.address == liar.address and p.live and p.blocks == BLOCKS for p in s.peers))
    served = a.engine.serve(tokens)
    assert (served.pool, served.equal) == (BLOCKS, False)


def test_agents_and_engine_are_well_after_all_of_it(pair: tuple[Node, Node]) -> None:
    a, b = pair
    b.loads_from(a, "after all, of a", BLOCKS)
    a.loads_from(b, "after all, of b", BLOCKS)
    wait_for("ready", a.ready, WAIT)
    assert (a.status().incarnation, b.status().incarnation) == INCARNATIONS[0]
