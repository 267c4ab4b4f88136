"""The operator's controller and a real peer server: who is answered while a member has no certificate, and whom an
authority that vouches for the controller lets in."""

import asyncio
import collections
import contextlib
import dataclasses
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from authority import Authority, member_uri

from kvpool_agent.identity.credentials import Credentials, read_credentials
from kvpool_agent.peer import frames, serve
from kvpool_agent.peer.connection import Connection, PeerError
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.peer.tls import Tls
from kvpool_contract.identity import CertificateName
from kvpool_operator.certificates.authority import Pair, new_authority, new_client, new_member
from kvpool_operator.certificates.proof import name_of, proves, read_leaf
from kvpool_operator.controller import asking
from kvpool_operator.controller.identity import client_context

NOW, DAY = datetime.now(UTC), timedelta(days=1)
WAIT = 30.0
KVPOOLS, USERS = new_authority("kvpool", NOW, 9 * DAY), Authority("a user's")
POOL = CertificateName("demo", "demo", "pool")
URI = member_uri("pool", "source")


def of_kvpool(uri: str) -> Credentials:
    own = new_client(KVPOOLS, uri, NOW, DAY)
    key: Any = own.parsed.public_key()
    return read_credentials(new_member(KVPOOLS, key, uri, NOW, DAY), own.key, KVPOOLS.certificate)


def of_user(uri: str) -> Credentials:
    certificate, key = USERS.leaf(uri)
    return read_credentials(certificate, key, USERS.certificate)


class Empty:
    """What a member answers with that holds nothing."""

    pool = "pool"

    def welcome(self, version: int) -> frames.Welcome:
        return frames.Welcome(version, "source", "inc", "Ready(warm)", "", 0)

    def renew(self, holder: tuple[str, str]) -> frames.Renewed:
        return frames.Renewed(0, [])


class Source:
    """A member that answers. own: its credentials, if it has any; apart: those of the controller are another's."""

    def __init__(self, own: Credentials | None, controllers: Pair | None = KVPOOLS, *, apart: bool = False) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.own, self.controllers = own, controllers
        transport = Tls(
            lambda: self.own,
            CertificateName("demo", "demo", "pool", "source"),
            lambda word: self.counts.update([word]),
            controllers=lambda: self.controllers.certificate if self.controllers else b"",
            apart=apart,
        )
        self.server = serve.PeerServer("127.0.0.1", 0, Empty(), Empty(), transport=transport, status=lambda: b'{"a":1}')  # type: ignore[arg-type]
        self.server.start()

    def asked(self, monkeypatch: pytest.MonkeyPatch, by: Pair = KVPOOLS) -> asking.Answered:
        """By the controller, as it asks."""
        monkeypatch.setattr(asking, "PEER_PORT", self.server.port)
        context = client_context(new_client(by, "kvpool://demo/controller", NOW, DAY))
        return asyncio.run(asking.ask_status("127.0.0.1", "pool", context))

    def fetched_by(self, credentials: Credentials) -> None:
        """By another member."""
        dialer = Dialer(Identity("pool", "asker", "inc"), Tls(lambda: credentials, POOL))
        try:
            connection, _ = dialer.handshake(f"127.0.0.1:{self.server.port}")
            connection.close()
        finally:
            dialer.close()


def test_a_member_with_a_certificate_proves_itself_to_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(of_kvpool(URI))
    answered = source.asked(monkeypatch)
    assert answered.document == b'{"a":1}' and answered.certificate is not None
    leaf = read_leaf(answered.certificate)
    assert leaf and proves(leaf, KVPOOLS.certificate, NOW)
    assert name_of(leaf) == CertificateName("demo", "demo", "pool", "source")
    source.fetched_by(of_kvpool(member_uri("pool", "asker")))
    with pytest.raises((OSError, EOFError)):  # a controller of another cluster, say
        source.asked(monkeypatch, new_authority("other", NOW, DAY))
    source.server.close()


def test_without_a_certificate_the_controller_is_answered_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(None)
    answered = source.asked(monkeypatch)
    assert answered.document == b'{"a":1}' and answered.certificate is not None
    leaf = read_leaf(answered.certificate)
    assert leaf and not proves(leaf, KVPOOLS.certificate, NOW)
    asker = of_kvpool(member_uri("pool", "asker"))
    with pytest.raises(PeerError, match="refused here: peer_unknown_authority"):
        source.fetched_by(asker)
    # one that does not look at what it is shown
    monkeypatch.setattr(asking, "PEER_PORT", source.server.port)
    context = client_context(Pair(asker.certificate, asker.key))
    with pytest.raises((OSError, EOFError)):
        asyncio.run(asking.ask_status("127.0.0.1", "pool", context))
    # and from the moment that it has one, all is as ever
    source.own = of_kvpool(URI)
    source.fetched_by(asker)
    source.server.close()


def test_a_member_that_does_not_know_the_controller_either_answers_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(None, None)
    with pytest.raises((OSError, EOFError)):
        source.asked(monkeypatch)
    assert source.counts["tls_without_certificate"] == 1
    source.server.close()


def test_with_a_users_certificates_kvpools_authority_vouches_for_the_controller_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source(of_user(member_uri("pool", "source")), apart=True)
    assert source.asked(monkeypatch).document == b'{"a":1}'
    source.fetched_by(of_user(member_uri("pool", "asker")))
    intruder = of_kvpool(member_uri("pool", "asker"))
    with pytest.raises(PeerError):
        source.fetched_by(dataclasses.replace(intruder, authorities=USERS.certificate))
    assert source.counts["tls_refused_peer_unknown_authority"] == 1
    source.server.close()


# -- when the controller's authorities change ----------------------------------------------------------


class Asker:
    """A member that dials, of a pool with a user's certificates. read: the authorities by which it knows the
    controller, which it has no use for here."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        own = of_user(member_uri("pool", "asker"))
        self.transport = Tls(lambda: own, POOL, lambda word: self.counts.update([word]), controllers=read, apart=True)
        self.dialer = Dialer(Identity("pool", "asker", "inc"), self.transport)

    def dial(self, source: Source) -> None:
        connection, _ = self.dialer.handshake(f"127.0.0.1:{source.server.port}", WAIT)
        connection.close()


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source(of_user(URI), apart=True)
    yield made
    made.server.close()


def test_to_those_who_dial_the_controllers_authorities_are_nothing(source: Source) -> None:
    authorities = iter([KVPOOLS.certificate, new_authority("the next", NOW, DAY).certificate, b"spoilt"])
    asker = Asker(lambda: next(authorities))
    for _ in range(4):
        asker.dial(source)
    assert asker.counts == {"tls_dialed": 4, "tls_resumed": 3}


def test_a_greeting_that_was_under_way_while_they_changed_leaves_a_session_that_is_good(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    authorities = [KVPOOLS.certificate]
    asker, greeted = Asker(lambda: authorities[-1]), Tls.greeted

    def late(transport: Tls, connection: Connection, address: str) -> None:
        if len(authorities) == 1:
            authorities.append(new_authority("the next", NOW, DAY).certificate)
            asker.dial(source)
        greeted(transport, connection, address)

    monkeypatch.setattr(Tls, "greeted", late)
    asker.dial(source)
    asker.dial(source)
    assert asker.counts == {"tls_dialed": 3, "tls_resumed": 1}


def test_who_dials_does_not_wait_for_the_file_that_answering_reads(source: Source) -> None:
    reading, dialed, read_on, waited = threading.Event(), threading.Event(), threading.Event(), list[bool]()

    def read() -> bytes:
        reading.set()
        waited.append(dialed.wait(WAIT / 3))
        read_on.set()
        return KVPOOLS.certificate

    asker = Asker(read)
    server = serve.PeerServer("127.0.0.1", 0, Empty(), Empty(), transport=asker.transport)  # type: ignore[arg-type]
    server.start()
    with socket.create_connection(("127.0.0.1", server.port), WAIT):
        assert reading.wait(WAIT)
        asker.dial(source)
        dialed.set()
        assert read_on.wait(WAIT)
    server.close()
    assert waited == [True]


@pytest.mark.parametrize("changed", [False, True])
def test_a_controllers_session_ends_with_the_authorities_that_it_began_with(source: Source, changed: bool) -> None:
    context = client_context(new_client(KVPOOLS, "kvpool://demo/controller", NOW, DAY))
    hello = frames.encode(frames.Hello([*frames.VERSIONS], "pool", "controller", "inc"))

    def answered(session: ssl.SSLSession | None = None) -> tuple[bool, bool, ssl.SSLSession | None]:
        """Whether it was, whether it has resumed the session, and with which one it could go on."""
        plain = socket.create_connection(("127.0.0.1", source.server.port), WAIT)
        with contextlib.closing(context.wrap_socket(plain, session=session)) as sock:
            try:
                sock.sendall(hello)
                return b"source" in sock.recv(4096), bool(sock.session_reused), sock.session
            except OSError:
                return False, bool(sock.session_reused), None

    *first, session = answered()
    assert first == [True, False] and session is not None
    if changed:
        source.controllers = new_authority("the next", NOW, DAY)
    assert answered(session)[:2] == (not changed, not changed)
