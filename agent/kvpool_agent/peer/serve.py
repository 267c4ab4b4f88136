"""The answering side: a thread per connection, bounded in connections, streams and time.

What is answered comes from a `Source`; this module knows frames and sockets only. A block's bytes are sent from the
arena under a lease that is renewed while they flow.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from kvpool_agent.listen import listen
from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import Connection, PeerError, keys_of
from kvpool_agent.policy.heat import HotBlock

log = logging.getLogger("kvpool.peer")

MAX_CONNECTIONS = 256
MAX_STREAMS = 8
IDLE_SECONDS = 120.0
PROGRESS_SECONDS = 10.0
BUSY_RETRY_SECONDS = 0.2
ACCEPT_PAUSE_SECONDS = 0.1  # after a failed accept: without file descriptors every one fails at once
MAX_HOT = 65_536
PURPOSES = ("demand", "prewarm", "probe")


class Source(Protocol):
    """What a member answers with."""

    pool: str

    def welcome(self, version: int) -> frames.Welcome: ...

    def holds(self, fingerprint: bytes, keys: Sequence[bytes]) -> list[bool]: ...

    def description(self) -> bytes:
        """The packed fields of the format."""
        ...

    def hottest(self, fingerprint: bytes, limit: int) -> list[HotBlock]: ...

    def blocks(
        self, fingerprint: bytes, keys: Sequence[bytes], purpose: str
    ) -> AbstractContextManager[Iterator[tuple[int, bytes, memoryview]]]:
        """(index, tag, bytes) of each block that is held, in order, readable while the context is open."""
        ...


class PeerServer:
    """Listens on (host, port); port 0 takes a free one, see `port`."""

    def __init__(self, host: str, port: int, source: Source) -> None:
        self._source = source
        self._socket = listen(host, port, 64)
        self.port: int = self._socket.getsockname()[1]
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._streams = threading.BoundedSemaphore(MAX_STREAMS)
        self._open: set[Connection] = set()
        self._lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._accept, name="kvpool-peers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            connection.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                if self._closing:
                    return
                time.sleep(ACCEPT_PAUSE_SECONDS)
                continue
            connection = Connection(sock)
            if not self._places.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._run, args=(connection,), name="kvpool-peer", daemon=True).start()

    def _run(self, connection: Connection) -> None:
        with self._lock:
            self._open.add(connection)
        try:
            self._serve(connection)
        except PeerError as error:
            log.debug("peer connection ended: %s", error)
        except Exception:
            log.exception("peer connection failed")
        finally:
            connection.close()
            with self._lock:
                self._open.discard(connection)
            self._places.release()

    def _serve(self, connection: Connection) -> None:
        connection.settimeout(PROGRESS_SECONDS)
        hello, tail_length = connection.receive()
        if not isinstance(hello, frames.Hello) or tail_length:
            raise PeerError("the connection does not begin with a hello")
        version = frames.choose_version(hello.versions)
        if version is None or hello.pool != self._source.pool:
            connection.send(frames.Refused("peer_version" if version is None else "other_pool"))
            return
        connection.send(self._source.welcome(version))
        while True:
            connection.settimeout(IDLE_SECONDS)
            message, tail_length = connection.receive()
            connection.settimeout(PROGRESS_SECONDS)
            self._answer(connection, message, tail_length, version)

    def _answer(self, connection: Connection, message: frames.AnyMessage, tail_length: int, version: int) -> None:
        match message:
            case frames.Ping():
                connection.send(self._source.welcome(version))
            case frames.Locate():
                held = self._source.holds(message.format, keys_of(connection, tail_length))
                connection.send(frames.Located(), bytes(held))
            case frames.Hot():
                blocks = self._source.hottest(message.format, min(message.limit, MAX_HOT))
                connection.send(frames.HotList(), frames.pack_hot(blocks))
            case frames.Describe():
                connection.send(frames.Described(), self._source.description())
            case frames.Fetch():
                self._stream(connection, message, keys_of(connection, tail_length))
            case _:
                raise PeerError(f"unexpected message {type(message).__name__}")

    def _stream(self, connection: Connection, message: frames.Fetch, keys: Sequence[bytes]) -> None:
        if message.purpose not in PURPOSES:
            raise PeerError(f"unknown purpose of a fetch: {message.purpose[:20]!r}")
        if not self._streams.acquire(blocking=False):
            connection.send(frames.Refused("busy", BUSY_RETRY_SECONDS))
            return
        try:
            with self._source.blocks(message.format, keys, message.purpose) as blocks:
                for index, tag, data in blocks:
                    connection.send(frames.Block(index, tag), data)
            connection.send(frames.FetchEnd())
        finally:
            self._streams.release()
