"""Listens for the engine's client and hands each session's frames to its handler. Frames and sockets only.

A session is a connection that begins with `attach`, or, of an engine's front end, with `requests`; a connection that
begins with `bare` says why the engine starts without the pool, and ends. What a frame means is decided by the flows,
behind `Handler`.
"""

import contextlib
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from kvpool_agent.listen import accepted
from kvpool_client import wire

log = logging.getLogger("kvpool.engine-port")

MAX_SESSIONS = 64
FIRST_FRAME_SECONDS = 5.0
FRAME_SECONDS = 10.0  # from a frame's first byte to its last
SEND_SECONDS = 5
SOCKET_MODE = 0o666  # the engine may run as any user; the folder is mounted into these two containers alone


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """The engine is not served, for this reason; `detail` says more, for people."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


class Busy(Exception):  # noqa: N818
    """Not now: the client shall come again at once."""


class Port:
    """The sending side of one session; any thread may call."""

    def __init__(self, channel: wire.Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()

    def send(self, header: dict[str, Any], tail: bytes = b"", descriptors: Sequence[int] = ()) -> None:
        """Writes one frame; a client that is gone, or does not read for seconds, ends the session."""
        with self._lock:
            try:
                self._channel.send(header, tail, descriptors)
            except wire.WireError:
                self._channel.shut()

    def end(self) -> None:
        """Ends the session: its client notices, and comes again."""
        self._channel.shut()


class Session(Protocol):
    """One attached engine."""

    def frame(self, frame: wire.Frame) -> None: ...

    def ended(self) -> None: ...


class Handler(Protocol):
    """What the flows make of an engine."""

    def attach(self, frame: wire.Frame, port: Port) -> Session:
        """Grants (and answers) an attach, or raises Refusal or Busy."""
        ...

    def bare(self, reason: str, detail: str) -> None: ...


class EnginePort:
    """The listening socket at `path`."""

    def __init__(
        self,
        path: Path,
        handler: Handler,
        requests: Callable[[Port], Session] | None = None,
        count: Callable[[str], None] = lambda _word: None,
    ) -> None:
        """requests: makes the session of a front end that asks what requests are. `count(word)` is called for each
        bound that was hit."""
        self._count = count
        self._path = path
        self._handler = handler
        self._requests = requests
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(SOCKET_MODE)
        self._socket.listen(16)
        self._places = threading.BoundedSemaphore(MAX_SESSIONS)
        self._closing = False
        self._thread = threading.Thread(target=self._accept, name="kvpool-engine-port", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def _accept(self) -> None:
        for sock in accepted(self._socket, lambda: self._closing, lambda: self._count("accepts_failed")):
            if not self._places.acquire(blocking=False):
                self._count("bound_sessions")
                sock.close()
                continue
            try:
                threading.Thread(target=self._run, args=(sock,), name="kvpool-engine", daemon=True).start()
            except RuntimeError as error:  # the container has no thread left; the client comes again
                log.error("an engine is turned away: %s", error)
                self._count("accepts_failed")
                sock.close()
                self._places.release()

    def _run(self, sock: socket.socket) -> None:
        channel = wire.Channel(sock)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
            self._serve(channel)
        except (wire.LateError, TimeoutError) as error:
            self._count("frames_late")
            log.warning("engine connection ended: %s", error)
        except (wire.WireError, Busy) as error:
            log.debug("engine connection ended: %s", error)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            log.warning("engine connection broke the protocol: %s: %s", type(error).__name__, error)
        except Exception:
            log.exception("engine session failed")
        finally:
            channel.close()
            self._places.release()

    def _serve(self, channel: wire.Channel) -> None:
        channel.settimeout(FIRST_FRAME_SECONDS)
        first = channel.receive()
        channel.bound_frames(FRAME_SECONDS)
        try:
            session = self._begin(first, channel)
        finally:
            _close(first)
        if session is None:
            return
        try:
            while True:
                frame = channel.receive()
                _close(frame)  # later frames have no use for descriptors
                session.frame(frame)
        finally:
            session.ended()

    def _begin(self, first: wire.Frame, channel: wire.Channel) -> Session | None:
        port = Port(channel)
        if first.verb == "bare":
            self._handler.bare(str(first.header["reason"]), str(first.header.get("detail", "")))
            port.send({"verb": "noted"})
            return None
        if first.verb == "requests" and self._requests is not None:
            port.send({"verb": "answering", "version": max(wire.VERSIONS)})
            return self._requests(port)
        if first.verb != "attach":
            raise wire.WireError(f"a session begins with attach, not {first.verb!r}")
        try:
            return self._handler.attach(first, port)
        except Refusal as refusal:
            detail = {"detail": refusal.detail} if refusal.detail else {}
            port.send({"verb": "refused", "reason": refusal.reason, **detail})
            return None


def _close(frame: wire.Frame) -> None:
    for descriptor in frame.descriptors:
        os.close(descriptor)
