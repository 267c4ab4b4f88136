"""Frames over one blocking TCP socket, as it is or inside TLS. Block bytes go from and into the arena directly: in
clear with no copy between, inside TLS with none beside that of the cipher."""

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence

from kvpool_agent.identity.credentials import Certified, wall_clock
from kvpool_agent.peer import frames
from kvpool_contract.names import BLOCK_KEY_BYTES

PROGRESS_SECONDS = 10.0  # within which the other end takes or says something, when it is its turn
BUSY_RETRY_SECONDS = 0.2  # after which one who is told `busy` may ask again
SILENCE_SECONDS = 10.0  # a source that says nothing for so long is gone, however far the deadline is
RETIME_SECONDS = 0.01  # a deadline is told to the socket so often: inside TLS bytes come in pieces of 16 KiB
RECORD_BYTES = 16 << 10  # most that one record of TLS holds
# The library takes a timeout for the whole of what it is given to send, not for each record: that much even the slowest
# reader that may go on takes within PROGRESS_SECONDS.
SENT_BYTES = 512 << 10


class PeerError(Exception):
    """The connection failed, timed out or broke the protocol."""


class PeerBusy(PeerError):  # noqa: N818 - an answer, not a fault
    """The peer has no stream free; it named the seconds after which to ask again."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("refused: busy")
        self.retry_after = retry_after


class Connection:
    """One thread at a time. Every call has the timeout that was set last, in seconds of inactivity."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._deadline: float | None = None
        self.peer: tuple[str, str] | None = None  # member and incarnation, as the handshake on this connection said
        self.version = 0  # that the handshake has agreed on
        self.moved = 0  # bytes sent and received
        self.certified: Certified | None = None  # whom the certificate at the other end names; None in clear
        self.under: object = None  # the credentials that this end has shown
        self._secured: ssl.SSLSocket | None = None
        self._retime_at = 0.0
        self.proved: frozenset[bytes] = frozenset()  # keys that the other side has proved to hold, see entitlement
        self.proved_at = float("-inf")
        self.links: dict[bytes, object] = {}  # what this end reads a slab of the other end's by
        self._ties: dict[bytes, Callable[[], object]] = {}
        self._tying = threading.Lock()  # of links and ties: who closes a connection need not be its thread
        self._closed = False
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def dial(cls, address: str, seconds: float) -> "Connection":
        """Connects to host:port. Raises PeerError."""
        host, _, port = address.rpartition(":")
        try:
            sock = socket.create_connection((host.strip("[]"), int(port)), timeout=seconds)
        except (OSError, ValueError) as error:
            raise PeerError(f"{address}: {error}") from None
        return cls(sock)

    def secure(
        self, wrap: Callable[[socket.socket], ssl.SSLSocket], credentials: object, seconds: float
    ) -> ssl.SSLSocket:
        """From here on inside TLS; returns after the handshake. Raises OSError."""
        sock = wrap(self._socket)
        self._socket = self._secured = sock
        self.under = credentials
        sock.settimeout(max(seconds, 0.001))
        sock.do_handshake()
        return sock

    @property
    def session(self) -> ssl.SSLSession | None:
        """With which the next connection to this peer can be secured in fewer steps; None where this one was secured
        by the session that the last one gave, which goes on being good. Each look at a session costs about 6 KiB that
        Python's library (seen with 3.11) never gives back."""
        secured = self._secured
        return secured.session if secured is not None and not secured.session_reused else None

    @property
    def expired(self) -> bool:
        """Whether the certificate at the other end has ended."""
        return self.certified is not None and wall_clock() >= self.certified.not_after

    @property
    def quiet(self) -> bool:
        """Whether nothing has come that nobody has read: on an idle connection that would be its end."""
        try:
            return not self._has_come(0.0)
        except (OSError, ValueError):
            return False

    def _has_come(self, seconds: float) -> bool:
        if self._secured is not None and self._secured.pending():
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def until(self, deadline: float | None) -> None:
        """Bounds all receiving from now on by a time on the monotonic clock: a source that trickles is late, too."""
        self._deadline, self._retime_at = deadline, 0.0

    def settimeout(self, seconds: float) -> None:
        """Raises PeerError where the connection was closed meanwhile, as at the end of this process."""
        self._retime_at = 0.0
        try:
            self._socket.settimeout(max(seconds, 0.001))
        except OSError as error:
            raise PeerError(f"the connection is closed: {error}") from None

    def wait(self, seconds: float) -> None:
        """Waits until something has come. Raises PeerError after so many seconds of nothing."""
        try:
            if not self._has_come(seconds):
                raise PeerError("receive failed: timed out")
        except (OSError, ValueError) as error:
            raise PeerError(f"receive failed: {error}") from None

    def send(self, message: frames.AnyMessage, tail: bytes | memoryview = b"", *, seconds: float | None = None) -> None:
        """Writes one frame; the tail's bytes are sent from where they lie. `seconds`: for all of it, beside the
        timeout of inactivity."""
        deadline = None if seconds is None else time.monotonic() + seconds
        header = frames.encode(message, len(tail))
        if self._secured is not None and len(tail) and len(header) < RECORD_BYTES:
            begin = RECORD_BYTES - len(header)  # header and the tail's beginning in one record
            header, tail = header + tail[:begin], memoryview(tail)[begin:]
        parts: list[memoryview] = [memoryview(header)]
        if len(tail):
            parts.append(memoryview(tail))
        try:
            while parts:
                if deadline is not None and time.monotonic() >= deadline:
                    raise PeerError("the peer reads too slowly")
                if self._secured is None:
                    sent = self._socket.sendmsg(parts)
                else:
                    sent = self._secured.send(parts[0][:SENT_BYTES])
                self.moved += sent
                while parts and sent >= len(parts[0]):
                    sent -= len(parts[0])
                    parts.pop(0)
                if sent:
                    parts[0] = parts[0][sent:]
        except OSError as error:
            raise PeerError(f"send failed: {_told(self._alert() or error)}") from None

    def _alert(self) -> OSError | None:
        """What the other end has said before it closed a connection on which sending fails."""
        if self._secured is not None:
            try:
                self._secured.settimeout(0.0)
                self._secured.recv(1)
            except ssl.SSLWantReadError:
                return None
            except ssl.SSLError as alert:
                return alert
            except (OSError, ValueError):
                return None
        return None

    def receive(self) -> tuple[frames.AnyMessage, int]:
        """The next message and the length of its tail, which must be read next."""
        try:
            header_length, tail_length = frames.decode_lengths(self.read(frames.LENGTHS.size))
            return frames.decode(self.read(header_length)), tail_length
        except frames.FrameError as error:
            raise PeerError(str(error)) from None

    def read(self, length: int) -> bytes:
        data = bytearray(length)
        self.read_into(memoryview(data))
        return bytes(data)

    def read_into(self, view: memoryview) -> None:
        """Fills the whole view."""
        done, length = 0, len(view)
        try:
            while done < length:
                if self._deadline is not None:
                    self._retime(self._deadline)
                got = self._socket.recv_into(view[done:], length - done)
                if not got:
                    raise PeerError("connection closed by the peer")
                done += got
                self.moved += got
        except OSError as error:
            raise PeerError(f"receive failed: {_told(error)}") from None

    def _retime(self, deadline: float) -> None:
        now = time.monotonic()
        if now >= deadline:
            raise PeerError("the deadline has passed")
        if now >= self._retime_at:
            self.settimeout(min(deadline - now, SILENCE_SECONDS))
            self._retime_at = now + RETIME_SECONDS

    def skip(self, length: int) -> None:
        """Reads a tail that nobody wants, without keeping it."""
        scrap = memoryview(bytearray(min(length, 1 << 20)))
        while length > 0:
            part = scrap[: min(length, len(scrap))]
            self.read_into(part)
            length -= len(part)

    def tie(self, name: bytes, link: object, end: Callable[[], object]) -> None:
        """`end` is called once: when the connection is closed, or something else is tied to it by the same name. Raises
        PeerError, after `end`, where the connection was closed meanwhile."""
        with self._tying:
            closed, before = self._closed, self._ties.pop(name, None)
            if not closed:
                self.links[name], self._ties[name] = link, end
        if before is not None:
            before()
        if closed:
            end()
            raise PeerError("the connection is closed")

    @property
    def tied(self) -> bool:
        """Whether something would have to be ended with this connection."""
        return bool(self._ties)

    def end_links(self) -> None:
        """Ends what is tied to this connection. Any thread may call, also while another one does."""
        with self._tying:
            ties, self._ties, self.links = self._ties, {}, {}
        for end in ties.values():
            end()

    def close(self) -> None:
        with self._tying:
            self._closed = True
        self.end_links()
        with contextlib.suppress(OSError):
            # not that of a TLS socket, after which another thread's bytes would leave in clear
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        self._socket.close()


def _told(error: OSError) -> str:
    """In few words; an alert of TLS is what the other end thinks of this one's certificate."""
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    return f"the peer refuses: {reason.lower().replace('_', ' ')}" if "_ALERT_" in reason else str(error)


def keys_of(connection: Connection, tail_length: int) -> Sequence[bytes]:
    """A tail of keys, bounded before it is read."""
    if tail_length > frames.MAX_KEYS * BLOCK_KEY_BYTES:
        raise PeerError(f"list of keys of {tail_length} bytes is over the limit")
    try:
        return frames.unpack_keys(connection.read(tail_length))
    except frames.FrameError as error:
        raise PeerError(str(error)) from None
