"""Connections between members are TLS 1.3 with certificates on both sides, or, where that is asked for, in clear.

Who is at the other end is settled before a frame is read: chain and validity by the library, then the one name in the
certificate, which must be of this pool. Contexts belong to one set of credentials, that of the answering side also to
the authorities by which it knows the controller: new connections use the newest, those that are open go on. With a
context go its session tickets, so that a session can't outlive the trust that it began with; a resumed session's
certificate is looked at anew.
"""

import collections
import functools
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Protocol

from cryptography import x509

from kvpool_agent.identity.credentials import Credentials, issued, read_certified
from kvpool_agent.identity.provisional import self_signed
from kvpool_agent.peer.connection import Connection, PeerError
from kvpool_contract.identity import ALPN, CertificateName, IdentityError

SESSIONS_KEPT = 512
TROUBLE_SECONDS = 5.0  # members ask each other every second
# OpenSSL's numbers of what is wrong with a certificate
_VERIFY = {
    9: "peer_certificate_not_yet_valid",
    10: "peer_certificate_expired",
    26: "peer_certificate_purpose",
}
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "peer_no_certificate",
    "UNSUPPORTED_PROTOCOL": "peer_tls_version",
    "WRONG_VERSION_NUMBER": "peer_not_tls",
    "HTTP_REQUEST": "peer_not_tls",
}


class TlsRefused(PeerError):  # noqa: N818 - an answer, not a fault
    """The other end is not one that this member talks to; `reason` is a word of kvpool_contract.reasons. `secured`:
    whether it can be told so."""

    def __init__(self, reason: str, detail: str, *, secured: bool) -> None:
        super().__init__(f"refused here: {reason}{': ' if detail else ''}{detail}")
        self.reason, self.secured = reason, secured


class NotCertified(PeerError):  # noqa: N818 - a state, not a fault
    """This member has no certificate to show, so nobody was asked."""


class Transport(Protocol):
    """What makes a TCP connection one over which frames go."""

    def dialed(self, connection: Connection, address: str, seconds: float) -> None:
        """The asking side. Raises PeerError."""
        ...

    def accepted(self, connection: Connection, seconds: float) -> None:
        """The answering side. Raises PeerError."""
        ...

    def greeted(self, connection: Connection, address: str) -> None:
        """A member has answered on this connection."""
        ...

    def proved(self, connection: Connection, member: str) -> None:
        """The other end says that it is this member. Raises PeerError where its certificate names another one."""
        ...

    def outdated(self, connection: Connection) -> bool:
        """Whether a new connection should take the place of this one, once it is idle."""
        ...

    def trouble(self) -> tuple[str, str]:
        """Reason and detail of what was wrong with a certificate of another member a moment ago; else empty."""
        ...


class Clear:
    """All bytes as they are."""

    def __init__(self, count: Callable[[str], None] = lambda _word: None) -> None:
        """Counts `connections_in_clear`."""
        self._count = count

    def dialed(self, connection: Connection, address: str, seconds: float) -> None:  # noqa: ARG002
        self._count("connections_in_clear")

    def accepted(self, connection: Connection, seconds: float) -> None:  # noqa: ARG002
        self._count("connections_in_clear")

    def greeted(self, connection: Connection, address: str) -> None:
        pass

    def proved(self, connection: Connection, member: str) -> None:
        pass

    def outdated(self, connection: Connection) -> bool:  # noqa: ARG002
        return False

    def trouble(self) -> tuple[str, str]:
        return "", ""


CLEAR = Clear()


def _context(protocol: int, credentials: Credentials, controllers: bytes = b"") -> ssl.SSLContext:
    """controllers: further authorities (PEM) that are trusted. Raises PeerError."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # an address is no identity: the name in the certificate is looked at instead
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        _load(context, credentials, controllers)
    except OSError as error:  # no descriptor left, or what the library says of a file
        raise PeerError(f"the own credentials can't be shown: {error}") from None
    return context


def _load(context: ssl.SSLContext, credentials: Credentials, controllers: bytes) -> None:
    """Raises OSError."""
    context.load_verify_locations(cadata=credentials.authorities.decode())
    if controllers:
        context.load_verify_locations(cadata=controllers.decode())
    context.set_alpn_protocols([ALPN])
    # the library takes chain and key from files alone: this one lies in memory and has no name
    descriptor = os.memfd_create("kvpool-leaf", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(credentials.certificate + b"\n" + credentials.key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


class _Asking:
    """One set of credentials towards those that are dialed, and the sessions that can be resumed under it. A session
    is good in the context that it was made in, and nowhere else."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self.context = _context(ssl.PROTOCOL_TLS_CLIENT, credentials)
        self.sessions: collections.OrderedDict[str, ssl.SSLSession] = collections.OrderedDict()


class _Answering:
    """One set of credentials towards those that dial. controllers: further authorities (PEM), by which the controller
    alone is known."""

    def __init__(self, credentials: Credentials, controllers: bytes = b"") -> None:
        self.credentials, self.controllers = credentials, controllers
        self.context = _context(ssl.PROTOCOL_TLS_SERVER, credentials, controllers)

    @functools.cached_property
    def _parsed(self) -> list[x509.Certificate]:
        return x509.load_pem_x509_certificates(self.controllers)

    def knows_as_controllers(self, leaf: x509.Certificate) -> bool:
        """Whether an authority that vouches for the controller alone has issued the certificate itself."""
        return bool(self.controllers) and any(issued(leaf, each) for each in self._parsed)


class Tls:
    """TLS with the credentials that are in force. Any thread may call."""

    def __init__(
        self,
        credentials: Callable[[], Credentials | None],
        pool: CertificateName,
        count: Callable[[str], None] = lambda _word: None,
        clock: Callable[[], float] = time.monotonic,
        *,
        controllers: Callable[[], bytes] = lambda: b"",
        apart: bool = False,
    ) -> None:
        """pool: what certificates of members must name, whatever their pod. controllers: authorities (PEM) by which
        the controller is known; apart: they are others than the members', who can't be known by them. Counts
        handshakes `tls_dialed`, `tls_resumed` of them, `tls_accepted`, and `tls_refused_REASON` at either side."""
        self._credentials = credentials
        self._controllers, self._apart = controllers, apart
        self._pool = pool
        self._count = count
        self._clock = clock
        self._lock = threading.Lock()
        self._asks: _Asking | None = None
        self._answers: _Answering | None = None
        self._provisional: _Answering | None = None
        self._trouble = ("", "", 0.0)

    def dialed(self, connection: Connection, address: str, seconds: float) -> None:
        asking = self._asking()
        with self._lock:
            session = asking.sessions.get(address)

        def wrap(sock: socket.socket) -> ssl.SSLSocket:
            return asking.context.wrap_socket(sock, do_handshake_on_connect=False, session=session)

        sock = self._handshake(connection, wrap, asking.credentials, address, seconds)
        name, _ = self._judge(connection, sock, address)
        if name.is_controller:
            raise self._refused("peer_other_pool", "the controller answers no member", address)
        self._count("tls_dialed")
        if sock.session_reused:
            self._count("tls_resumed")

    def accepted(self, connection: Connection, seconds: float) -> None:
        certified = self._credentials() is not None
        answering = self._answering() if certified else self._without()

        def wrap(sock: socket.socket) -> ssl.SSLSocket:
            return answering.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

        sock = self._handshake(connection, wrap, answering.credentials, "", seconds)
        name, leaf = self._judge(connection, sock, "")
        if not name.is_controller:
            if not certified:
                raise NotCertified("this member has no certificate yet")
            if answering.knows_as_controllers(leaf):
                raise self._refused("peer_unknown_authority", "it vouches for the controller alone", "", secured=True)
        self._count("tls_accepted")

    def greeted(self, connection: Connection, address: str) -> None:
        """Keeps the session: its ticket has come before the answer."""
        with self._lock:
            asking, session = self._asks, connection.session
            if asking is None or asking.credentials is not connection.under or session is None:
                return
            asking.sessions[address] = session
            asking.sessions.move_to_end(address)
            if len(asking.sessions) > SESSIONS_KEPT:
                asking.sessions.popitem(last=False)

    def proved(self, connection: Connection, member: str) -> None:
        certified = connection.certified
        if certified is None or (certified.name.pod not in ("", member) and not certified.name.is_controller):
            raise self._refused("peer_other_member", f"it says that it is {member[:80]!r}", "", secured=True)

    def outdated(self, connection: Connection) -> bool:
        now = self._credentials()
        return connection.expired or (now is not None and connection.under is not now)

    def trouble(self) -> tuple[str, str]:
        reason, detail, at = self._trouble
        return (reason, detail) if reason and self._clock() - at < TROUBLE_SECONDS else ("", "")

    def _in_force(self) -> Credentials:
        credentials = self._credentials()
        if credentials is None:
            raise self._not_certified()
        return credentials

    def _not_certified(self) -> NotCertified:
        self._count("tls_without_certificate")
        return NotCertified("this member has no certificate yet")

    def _asking(self) -> _Asking:
        with self._lock:
            credentials, made = self._in_force(), self._asks
            if made is None or made.credentials is not credentials:
                made = self._asks = _Asking(credentials)
            return made

    def _answering(self) -> _Answering:
        controllers = self._controllers() if self._apart else b""  # a file's: whoever dials does not wait for it
        with self._lock:
            credentials, made = self._in_force(), self._answers
            if made is None or made.credentials is not credentials or made.controllers != controllers:
                made = self._answers = _Answering(credentials, controllers)
            return made

    def _without(self) -> _Answering:
        """With which the controller is answered while this member has no certificate."""
        authorities = self._controllers()
        with self._lock:
            made = self._provisional
            if made is None or made.credentials.authorities != authorities:
                try:
                    made = self._provisional = _Answering(self_signed(self._pool, authorities))
                except IdentityError:
                    raise self._not_certified() from None
            return made

    def _handshake(
        self,
        connection: Connection,
        wrap: Callable[[socket.socket], ssl.SSLSocket],
        credentials: Credentials,
        address: str,
        seconds: float,
    ) -> ssl.SSLSocket:
        try:
            return connection.secure(wrap, credentials, seconds)
        except ssl.SSLCertVerificationError as error:
            raise self._refused(_VERIFY.get(error.verify_code, "peer_unknown_authority"), "", address) from None
        except ssl.SSLError as error:
            reason = error.reason or ""
            word = "refused_by_peer" if "_ALERT_" in reason else _REASONS.get(reason, "peer_handshake")
            raise self._refused(word, reason.lower().replace("_", " "), address) from None
        except OSError as error:
            raise self._refused("peer_handshake", str(error), address) from None

    def _judge(
        self, connection: Connection, sock: ssl.SSLSocket, address: str
    ) -> tuple[CertificateName, x509.Certificate]:
        """Whom the certificate at the other end names: a member of this pool, or the controller; and that itself."""
        if sock.selected_alpn_protocol() != ALPN:
            raise self._refused("peer_handshake", f"it does not speak {ALPN}", address)
        try:
            leaf = x509.load_der_x509_certificate(sock.getpeercert(True) or b"")
            connection.certified = read_certified(leaf)
        except (IdentityError, ValueError) as error:
            raise self._refused("peer_certificate_name", str(error), address, secured=True) from None
        certified, pool = connection.certified, self._pool
        name = certified.name
        if name.cluster != pool.cluster:
            raise self._refused("peer_other_cluster", name.encode(), address, secured=True)
        if not name.is_controller:
            if name.k8s_namespace != pool.k8s_namespace:
                raise self._refused("peer_other_k8s_namespace", name.encode(), address, secured=True)
            if name.pool != pool.pool:
                raise self._refused("peer_other_pool", name.encode(), address, secured=True)
        if connection.expired:  # of a session that is resumed
            raise self._refused("peer_certificate_expired", "", address, secured=True)
        return name, leaf

    def _refused(self, reason: str, detail: str, address: str, *, secured: bool = False) -> TlsRefused:
        self._count(f"tls_refused_{reason}")
        if reason in ("peer_certificate_not_yet_valid", "peer_certificate_expired"):
            who = f"{address}: " if address else "a member that asked: "
            self._trouble = (reason, f"{who}its certificate is not valid by this clock", self._clock())
        return TlsRefused(reason, detail, secured=secured)
