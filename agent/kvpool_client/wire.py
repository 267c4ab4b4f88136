"""The engine port's frames: length, JSON header, raw tail, over a Unix stream socket that also carries descriptors.

JSON, because this side has the standard library alone; keys and other bytes travel raw in the tail. The codec is
sans-IO (`encode`, `Decoder`); `Channel` is the one place that touches a socket. Both ends use this module, so that
a frame is written down once.

Frame: 4 bytes header length, 4 bytes tail length (big-endian), header (UTF-8 JSON object), tail.
"""

import array
import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

VERSIONS = (2, 3)  # spoken by this build, newest last
HEADS_VERSION = 3  # the first one with `heads`
MAX_HEADER = 1 << 20
MAX_TAIL = 64 << 20
MAX_DESCRIPTORS = 4  # of one frame
_LENGTHS = struct.Struct("!II")


class WireError(Exception):
    """The peer's bytes are no frames of this protocol, or the connection ended; the session is over."""


class LateError(WireError):
    """A frame was begun and not ended in time."""


@dataclass(frozen=True)
class Frame:
    """`header["verb"]` says what it is; `tail` is raw bytes; `descriptors` came along with it."""

    header: dict[str, Any]
    tail: bytes = b""
    descriptors: tuple[int, ...] = ()

    @property
    def verb(self) -> str:
        return str(self.header.get("verb", ""))


def encode(header: dict[str, Any], tail: bytes = b"") -> bytes:
    """One frame's bytes. Raises WireError when it is over the limits."""
    text = json.dumps(header, separators=(",", ":")).encode()
    if len(text) > MAX_HEADER or len(tail) > MAX_TAIL:
        raise WireError(f"frame too large: header {len(text)}, tail {len(tail)} bytes")
    return _LENGTHS.pack(len(text), len(tail)) + text + tail


class Decoder:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def partial(self) -> bool:
        """Whether the beginning of a frame waits for its rest."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """Takes bytes as they come, returns the frames that are complete. Raises WireError on a bad frame."""
        self._buffer += data
        frames = []
        while len(self._buffer) >= _LENGTHS.size:
            header_length, tail_length = _LENGTHS.unpack_from(self._buffer)
            if header_length > MAX_HEADER or tail_length > MAX_TAIL:
                raise WireError(f"frame lengths over the limits: header {header_length}, tail {tail_length} bytes")
            end = _LENGTHS.size + header_length + tail_length
            if len(self._buffer) < end:
                break
            text = bytes(self._buffer[_LENGTHS.size : _LENGTHS.size + header_length])
            tail = bytes(self._buffer[_LENGTHS.size + header_length : end])
            del self._buffer[:end]
            try:
                header = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise WireError(f"frame header is not JSON: {error}") from None
            if not isinstance(header, dict):
                raise WireError("frame header is not a JSON object")
            frames.append(Frame(header, tail))
        return frames


class Channel:
    """Frames over one connected Unix socket. `send` may be called by one thread, `receive` by another."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._decoder = Decoder()
        self._frames: list[Frame] = []
        self._descriptors: list[int] = []
        self._frame_seconds = 0.0
        self._partial_since = 0.0

    @classmethod
    def dial(cls, path: str, seconds: float) -> "Channel":
        """Connects to the socket at `path`; `seconds` is the timeout of this and of what comes then. Raises OSError."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(seconds)
            sock.connect(path)
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    def bound_frames(self, seconds: float) -> None:
        """A frame that takes longer from its first bytes to its last ends the connection; between frames nothing is
        bounded. Sending is left alone."""
        self._frame_seconds = seconds
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 1, 0))

    def send(self, header: dict[str, Any], tail: bytes = b"", descriptors: Sequence[int] = ()) -> None:
        """Writes one frame whole; descriptors ride on its first byte. Raises WireError when the peer is gone."""
        data = memoryview(encode(header, tail))
        try:
            if descriptors:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
                data = data[self._socket.sendmsg([data], [rights]) :]
            if data:  # an empty send would fail where the peer has answered and closed meanwhile
                self._socket.sendall(data)
        except OSError as error:
            raise WireError(f"connection lost while sending: {error}") from None

    def receive(self) -> Frame:
        """The next frame. Raises WireError at the end of the connection, TimeoutError at the socket's timeout."""
        while not self._frames:
            space = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
            self._look_at_the_clock()
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(1 << 18, space)
            except TimeoutError:
                raise
            except BlockingIOError:  # of a bounded channel: a second without a byte
                continue
            except OSError as error:
                raise WireError(f"connection lost: {error}") from None
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    rights = array.array("i")
                    rights.frombytes(content[: len(content) - len(content) % rights.itemsize])
                    self._descriptors += rights
            if len(self._descriptors) > MAX_DESCRIPTORS:
                raise WireError(f"more than {MAX_DESCRIPTORS} descriptors with one frame")
            if flags & socket.MSG_CTRUNC:  # the kernel has closed those that found no place
                raise WireError("descriptors were lost on the way: this process has too many files open")
            if not data:
                raise WireError("connection closed by the other side")
            before = self._decoder.partial
            self._frames = self._decoder.feed(data)
            if self._frames or not before:
                self._partial_since = time.monotonic()
        frame = self._frames.pop(0)
        if self._descriptors:
            frame = Frame(frame.header, frame.tail, tuple(self._descriptors))
            self._descriptors = []
        return frame

    def _look_at_the_clock(self) -> None:
        late = time.monotonic() - self._partial_since > self._frame_seconds
        if self._frame_seconds and self._decoder.partial and late:
            raise LateError(f"a frame took longer than {self._frame_seconds:.0f} s")

    def settimeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def shut(self) -> None:
        """Ends the connection for both directions; a thread in `receive` gets a WireError."""
        with contextlib.suppress(OSError):  # not connected any more
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shut()
        self._socket.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []


def split(tail: bytes, size: int) -> list[bytes]:
    """A tail of equal items. Raises WireError when it doesn't divide."""
    if size <= 0 or len(tail) % size:
        raise WireError(f"tail of {len(tail)} bytes is no whole number of {size}-byte items")
    return [tail[i : i + size] for i in range(0, len(tail), size)]
