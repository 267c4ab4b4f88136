"""Frames over one blocking TCP socket. Block bytes go from and into the arena directly, with no copy between."""

import contextlib
import select
import socket
import time
from collections.abc import Sequence

from kvpool_agent.peer import frames
from kvpool_contract.names import BLOCK_KEY_BYTES

SILENCE_SECONDS = 10.0  # a source that says nothing for so long is gone, however far the deadline is


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

    @property
    def quiet(self) -> bool:
        """Whether nothing has come that nobody has read: on an idle connection that would be its end."""
        poll = select.poll()
        try:
            poll.register(self._socket, select.POLLIN)
            return not poll.poll(0)
        except (OSError, ValueError):
            return False

    def until(self, deadline: float | None) -> None:
        """Bounds all receiving from now on by a time on the monotonic clock: a source that trickles is late, too."""
        self._deadline = deadline

    def settimeout(self, seconds: float) -> None:
        """Raises PeerError where the connection was closed meanwhile, as at the end of this process."""
        try:
            self._socket.settimeout(max(seconds, 0.001))
        except OSError as error:
            raise PeerError(f"the connection is closed: {error}") from None

    def wait(self, seconds: float) -> None:
        """Waits until something has come. Raises PeerError after so many seconds of nothing."""
        self.settimeout(seconds)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except OSError as error:
            raise PeerError(f"receive failed: {error}") from None

    def send(self, message: frames.AnyMessage, tail: bytes | memoryview = b"", *, seconds: float | None = None) -> None:
        """Writes one frame; the tail's bytes are sent from where they lie. `seconds`: for all of it, beside the
        timeout of inactivity."""
        deadline = None if seconds is None else time.monotonic() + seconds
        parts: list[memoryview] = [memoryview(frames.encode(message, len(tail)))]
        if len(tail):
            parts.append(memoryview(tail))
        try:
            while parts:
                if deadline is not None and time.monotonic() >= deadline:
                    raise PeerError("the peer reads too slowly")
                sent = self._socket.sendmsg(parts)
                self.moved += sent
                while parts and sent >= len(parts[0]):
                    sent -= len(parts[0])
                    parts.pop(0)
                if sent:
                    parts[0] = parts[0][sent:]
        except OSError as error:
            raise PeerError(f"send failed: {error}") from None

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
        done = 0
        try:
            while done < len(view):
                if self._deadline is not None:
                    left = self._deadline - time.monotonic()
                    if left <= 0:
                        raise PeerError("the deadline has passed")
                    self.settimeout(min(left, SILENCE_SECONDS))
                got = self._socket.recv_into(view[done:])
                if not got:
                    raise PeerError("connection closed by the peer")
                done += got
                self.moved += got
        except OSError as error:
            raise PeerError(f"receive failed: {error}") from None

    def skip(self, length: int) -> None:
        """Reads a tail that nobody wants, without keeping it."""
        scrap = memoryview(bytearray(min(length, 1 << 20)))
        while length > 0:
            part = scrap[: min(length, len(scrap))]
            self.read_into(part)
            length -= len(part)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def keys_of(connection: Connection, tail_length: int) -> Sequence[bytes]:
    """A tail of keys, bounded before it is read."""
    if tail_length > frames.MAX_KEYS * BLOCK_KEY_BYTES:
        raise PeerError(f"list of keys of {tail_length} bytes is over the limit")
    try:
        return frames.unpack_keys(connection.read(tail_length))
    except frames.FrameError as error:
        raise PeerError(str(error)) from None
