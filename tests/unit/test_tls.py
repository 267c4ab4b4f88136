"""Members over TLS on real sockets: who is let in, who is not and by which counter, and certificates that change."""

import collections
import contextlib
import dataclasses
import errno
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from authority import BOTH_ENDS, DAY, Authority, member_uri
from trusted import client_context, server_context

from kvpool_agent.identity.credentials import Credentials, read_credentials
from kvpool_agent.peer import frames, serve
from kvpool_agent.peer.connection import Connection, PeerError
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.peer.tls import CLEAR, Tls
from kvpool_agent.policy.heat import HotBlock
from kvpool_contract.identity import CertificateName

FORMAT = b"f" * 16
KEY = b"k" * 16
WAIT = 30.0
POOL = CertificateName("demo", "demo", "pool")
NOW = datetime.now(UTC)
AUTHORITY, OTHER_AUTHORITY = Authority(), Authority("another")


def credentials(member: str = "asker", by: Authority = AUTHORITY, trust: bytes = b"", **leaf: object) -> Credentials:
    certificate, key = by.leaf(member_uri("pool", member), **leaf)  # type: ignore[arg-type]
    return read_credentials(certificate, key, trust or AUTHORITY.certificate)


class Shelf:
    pool = "pool"

    def __init__(self) -> None:
        self.data = bytes(range(256)) * 1000

    def welcome(self, version: int) -> frames.Welcome:
        return frames.Welcome(version, "source", "inc", "Ready(warm)", FORMAT.hex(), 1)

    def holds(self, fingerprint: bytes, keys: Sequence[bytes]) -> list[bool]:
        return [True] * len(keys)

    def description(self) -> bytes:
        return b""

    def hottest(self, fingerprint: bytes, limit: int) -> list[HotBlock]:
        return []

    @contextlib.contextmanager
    def blocks(self, fingerprint: bytes, keys: Sequence[bytes], purpose: str) -> Iterator[Iterator[object]]:
        yield ((i, b"t" * 16, memoryview(self.data)) for i in range(len(keys)))


class Board:
    """A directory that keeps nothing."""

    def renew(self, holder: tuple[str, str]) -> frames.Renewed:
        return frames.Renewed(0, [])


class Source:
    """A member that answers, with the credentials that it holds now."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.credentials: Credentials | None = credentials("source")
        transport = Tls(lambda: self.credentials, POOL, self.count)
        self.server = serve.PeerServer(
            "127.0.0.1", 0, Shelf(), Board(), count=self.count, transport=transport, status=lambda: b'{"a":1}'
        )  # type: ignore[arg-type]
        self.transport = transport
        self.server.start()

    def count(self, word: str) -> None:
        self.counts[word] += 1

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def until_counted(self, **words: int) -> None:
        until = time.monotonic() + WAIT
        while (found := {word: self.counts[word] for word in words}) != words:
            assert time.monotonic() < until, (found, words)
            time.sleep(0.01)

    def refused(self) -> dict[str, int]:
        return {word: count for word, count in self.counts.items() if word.startswith("tls_refused_")}


class Asker:
    """A member that asks."""

    def __init__(self, own: Credentials | None = None, member: str = "asker") -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.credentials: Credentials | None = own or credentials()
        self.transport = Tls(lambda: self.credentials, POOL, self.count)
        self.dialer = Dialer(Identity("pool", member, "inc"), self.transport)

    def count(self, word: str) -> None:
        self.counts[word] += 1

    def fetch(self, address: str, blocks: int = 2) -> list[bytes]:
        landed = []

        def land(index: int, tag: bytes, length: int, read_into: Callable[[memoryview], None]) -> None:
            data = bytearray(length)
            read_into(memoryview(data))
            landed.append(bytes(data))

        self.dialer.fetch(address, FORMAT, [KEY] * blocks, "demand", time.monotonic() + WAIT, land)
        return landed


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handshake computes; on a busy machine that may take longer than a member would wait."""
    monkeypatch.setattr("kvpool_agent.peer.dial.HANDSHAKE_SECONDS", WAIT)
    monkeypatch.setattr("kvpool_agent.peer.serve.HANDSHAKE_SECONDS", WAIT)


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source()
    yield made
    made.server.close()


@pytest.fixture
def asker() -> Iterator[Asker]:
    made = Asker()
    yield made
    made.dialer.close()


def test_blocks_come_whole_and_the_next_connection_resumes(source: Source, asker: Asker) -> None:
    assert asker.fetch(source.address) == [Shelf().data] * 2
    asker.dialer.forget(source.address)
    assert asker.fetch(source.address) == [Shelf().data] * 2
    assert asker.counts == {"tls_dialed": 2, "tls_resumed": 1}
    source.until_counted(tls_accepted=2)
    assert source.refused() == {}


def test_a_session_is_taken_once_however_often_it_is_resumed(
    source: Source, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    taken = ssl.SSLSocket.session.fget
    assert taken is not None
    monkeypatch.setattr(ssl.SSLSocket, "session", property(lambda sock: looks.append(sock) or taken(sock)))
    for _ in range(4):
        assert asker.fetch(source.address, 1) == [Shelf().data]
        asker.dialer.forget(source.address)
    assert asker.counts == {"tls_dialed": 4, "tls_resumed": 3}
    assert len(looks) == 1


def controller(by: Authority = AUTHORITY) -> Credentials:
    certificate, key = by.leaf("kvpool://demo/controller")
    return read_credentials(certificate, key, AUTHORITY.certificate)


def of_pool(*uris: str) -> Credentials:
    certificate, key = AUTHORITY.leaf(*uris)
    return dataclasses.replace(credentials(), certificate=certificate, key=key)


STRANGERS: dict[str, tuple[Callable[[], Credentials], str]] = {
    "another authority": (lambda: credentials(by=OTHER_AUTHORITY), "peer_unknown_authority"),
    "expired": (lambda: credentials(begin=NOW - 2 * DAY), "peer_certificate_expired"),
    "not yet valid": (lambda: credentials(begin=NOW + DAY), "peer_certificate_not_yet_valid"),
    "a server's certificate": (lambda: credentials(usages=BOTH_ENDS[:1]), "peer_certificate_purpose"),
    "another pool": (lambda: of_pool(member_uri("other", "asker")), "peer_other_pool"),
    "another namespace": (
        lambda: of_pool(member_uri("pool", "asker", k8s_namespace="b")), "peer_other_k8s_namespace"
    ),
    "another cluster": (lambda: of_pool(member_uri("pool", "asker", cluster="b")), "peer_other_cluster"),
    "the controller of another cluster": (lambda: of_pool("kvpool://b/controller"), "peer_other_cluster"),
    "two names": (
        lambda: of_pool(member_uri("pool", "asker"), member_uri("pool", "b")), "peer_certificate_name"
    ),
    "no name": (lambda: of_pool(), "peer_certificate_name"),
    "a name of no kind": (lambda: of_pool("kvpool://demo/somebody"), "peer_certificate_name"),
    "another member's": (lambda: credentials("another"), "peer_other_member"),
}  # fmt: skip


@pytest.mark.parametrize("who", STRANGERS)
def test_a_stranger_is_refused_by_the_answering_side_before_it_is_asked_anything(source: Source, who: str) -> None:
    made, word = STRANGERS[who]
    stranger = Asker(made())
    with pytest.raises(PeerError) as raised:
        stranger.fetch(source.address)
    # what is found after the handshake can be told by a frame, what the library finds is an alert
    # where the connection is gone before that was read, only its end is seen
    told = (f"refused: {word}", "the peer refuses: ", "reset by peer", "EOF occurred", "Broken pipe")
    assert any(text in str(raised.value) for text in told)
    source.until_counted(**{f"tls_refused_{word}": 1, "handshakes_failed": 1})
    assert len(source.refused()) == 1
    assert source.transport.trouble()[0] == (word if word.endswith(("expired", "valid")) else "")
    # and the one after it is served as ever
    assert Asker().fetch(source.address, 1) == [Shelf().data]


@pytest.mark.parametrize("who", [who for who in STRANGERS if who != "a server's certificate"])
def test_a_stranger_is_refused_by_the_asking_side_before_it_is_told_anything(
    source: Source, asker: Asker, who: str
) -> None:
    made, word = STRANGERS[who]
    source.credentials = made()
    with pytest.raises(PeerError, match=f"refused here: {word}"):
        asker.fetch(source.address)
    assert asker.counts[f"tls_refused_{word}"] == 1


def test_a_client_certificate_alone_is_refused_by_the_asking_side(source: Source, asker: Asker) -> None:
    source.credentials = credentials("source", usages=BOTH_ENDS[1:])
    with pytest.raises(PeerError, match="refused here: peer_certificate_purpose"):
        asker.fetch(source.address)


def test_a_certificate_of_the_pool_serves_for_each_member(source: Source) -> None:
    shared = of_pool("kvpool://demo/ns/demo/pool/pool")
    source.credentials = shared
    assert Asker(shared, "any").fetch(source.address, 1) == [Shelf().data]


def raw(source: Source, context: ssl.SSLContext | None = None, first: bytes = b"") -> bytes:
    """What comes back until the connection ends."""
    with socket.create_connection(("127.0.0.1", source.server.port), timeout=WAIT) as plain:
        try:
            sock = context.wrap_socket(plain) if context is not None else plain
            sock.sendall(first)
            data = b""
            while part := sock.recv(4096):
                data += part
            return data
        except OSError:
            return b""


HELLO = frames.encode(frames.Hello([1, 2, 3], "pool", "asker", "inc"))


def test_no_certificate_an_older_tls_and_frames_in_clear_get_nothing(source: Source) -> None:
    assert raw(source, client_context(None), HELLO) == b""
    source.until_counted(tls_refused_peer_no_certificate=1)
    older = client_context(credentials(), maximum_version=ssl.TLSVersion.TLSv1_2)
    assert raw(source, older, HELLO) == b""
    source.until_counted(tls_refused_peer_tls_version=1)
    answered = raw(source, None, HELLO)
    assert b"source" not in answered
    source.until_counted(tls_refused_peer_not_tls=1, handshakes_failed=3)
    # the same client with a certificate is welcome: it was nothing else
    with contextlib.suppress(TimeoutError):
        sock = client_context(credentials()).wrap_socket(
            socket.create_connection(("127.0.0.1", source.server.port), WAIT)
        )
        with sock:
            sock.sendall(HELLO)
            assert b"source" in sock.recv(4096)
    assert sum(source.refused().values()) == 3


def test_the_controller_gets_the_status_and_nothing_else(source: Source) -> None:
    def ask(own: Credentials, message: frames.AnyMessage) -> bytes:
        asker = Asker(own, "controller" if own.own.name.is_controller else "asker")
        connection, welcome = asker.dialer.handshake(source.address, WAIT)
        assert welcome.version == frames.VERSIONS[0]
        with contextlib.closing(connection):
            connection.send(message)
            _, tail_length = connection.receive()
            return connection.read(tail_length)

    assert ask(controller(), frames.Status()) == ask(credentials(), frames.Status()) == b'{"a":1}'
    assert ask(credentials(), frames.Describe()) == b""
    with pytest.raises(PeerError, match="closed by the peer"):
        ask(controller(), frames.Describe())


def test_a_member_without_a_certificate_asks_and_answers_nobody_until_it_has_one(source: Source, asker: Asker) -> None:
    had, source.credentials = source.credentials, None
    with pytest.raises(PeerError, match="refused here: peer_handshake"):
        asker.fetch(source.address)
    source.until_counted(tls_without_certificate=1)
    source.credentials = had
    own, asker.credentials = asker.credentials, None
    with pytest.raises(PeerError, match="this member has no certificate yet"):
        asker.fetch(source.address)
    asker.credentials = own
    assert asker.fetch(source.address, 1) == [Shelf().data]


def test_new_credentials_hold_for_new_connections_and_idle_ones_are_let_go(source: Source, asker: Asker) -> None:
    connection, _ = asker.dialer.handshake(source.address, WAIT)
    asker.fetch(source.address, 1)
    source.credentials = credentials("source")
    # what is open goes on, also at the side that has changed
    connection.send(frames.Ping())
    assert asker.dialer.expect_welcome(connection).member == "source"
    assert asker.fetch(source.address, 1) == [Shelf().data]
    assert asker.counts["tls_dialed"] == 2
    asker.credentials = credentials()
    assert asker.dialer.outdated(connection)
    assert asker.fetch(source.address, 1) == [Shelf().data]
    # a session belongs to the credentials that it began with
    assert asker.counts == {"tls_dialed": 3, "tls_resumed": 1}
    connection.close()


def test_a_session_ends_with_the_trust_that_it_began_with(source: Source, asker: Asker) -> None:
    asker.fetch(source.address, 1)
    asker.dialer.forget(source.address)
    source.credentials = credentials("source", trust=OTHER_AUTHORITY.certificate)
    with pytest.raises(PeerError):
        asker.fetch(source.address)
    source.until_counted(tls_refused_peer_unknown_authority=1)


def test_a_connection_whose_certificate_ends_is_closed_after_its_request(
    source: Source, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, _ = asker.dialer.handshake(source.address, WAIT)
    connection.send(frames.Ping())
    asker.dialer.expect_welcome(connection)
    assert not connection.expired and not asker.dialer.outdated(connection)
    monkeypatch.setattr("kvpool_agent.peer.connection.wall_clock", lambda: (NOW + 2 * DAY).timestamp())
    connection.send(frames.Ping())
    with pytest.raises(PeerError, match=r"closed by the peer|reset by peer"):
        asker.dialer.expect_welcome(connection)
    source.until_counted(tls_ended_by_expiry=1)
    assert asker.dialer.outdated(connection)


def test_in_clear_is_what_must_be_asked_for(source: Source) -> None:
    with pytest.raises(PeerError):
        Dialer(Identity("pool", "asker", "inc"), CLEAR).handshake(source.address, WAIT)
    source.until_counted(tls_refused_peer_not_tls=1)


def test_closing_lets_no_byte_out_in_clear() -> None:
    left, right = socket.socketpair()
    server = threading_server(right)
    connection = Connection(left)
    connection.secure(
        lambda sock: client_context(credentials()).wrap_socket(sock, do_handshake_on_connect=False), None, WAIT
    )
    server.result(WAIT)
    connection.close()
    with pytest.raises(PeerError):
        connection.send(frames.Ping())


def threading_server(sock: socket.socket):  # type: ignore[no-untyped-def]
    from concurrent.futures import ThreadPoolExecutor

    context = server_context(credentials("source"))
    return ThreadPoolExecutor(1).submit(context.wrap_socket, sock, server_side=True)


def test_without_a_descriptor_for_the_key_nobody_is_asked_and_a_moment_later_they_are(
    source: Source, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", none_left)
        with pytest.raises(PeerError, match="Too many open files"):
            asker.dialer.handshake(source.address, WAIT)
    connection, _ = asker.dialer.handshake(source.address, WAIT)
    connection.close()


def test_no_file_holds_the_key(asker: Asker, source: Source) -> None:
    asker.fetch(source.address, 1)
    opened = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.exists()]
    assert not [name for name in opened if "kvpool-leaf" in name]
    assert "PRIVATE" not in repr(asker.credentials)
