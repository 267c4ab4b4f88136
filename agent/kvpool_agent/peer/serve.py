"""The answering side: a thread per connection, bounded in connections, streams, bytes per second and time.

What is answered comes from a `Source`; this module knows frames and sockets only. A block's bytes are sent from the
arena under a lease that lasts as long as their sending may, and is renewed with each block: a reader that goes on
keeps it, one that stands still is cut off. Nobody waits in line: who finds no place is told to ask again. Requests
and newcomers have places of their own.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from kvpool_agent.keyring import Keyring
from kvpool_agent.listen import accepted, address_of, listen
from kvpool_agent.peer import frames
from kvpool_agent.peer.bounds import Gate, Pace
from kvpool_agent.peer.connection import (
    BUSY_RETRY_SECONDS,
    PROGRESS_SECONDS,
    Connection,
    PeerBusy,
    PeerError,
    keys_of,
)
from kvpool_agent.peer.entitlement import Entitlement
from kvpool_agent.peer.lend import lend
from kvpool_agent.peer.lending import Borrow, Join, Joined
from kvpool_agent.peer.rdma.words import RdmaError
from kvpool_agent.peer.shares import Shares
from kvpool_agent.peer.source import Directory, Source, Taker
from kvpool_agent.peer.tls import CLEAR, TlsRefused, Transport
from kvpool_agent.policy.purposes import PROBE, Purposes, default_purposes
from kvpool_agent.store.heads import NOTHING

log = logging.getLogger("kvpool.peer")

# of a pool of as many members as there may be (directory.members), each with its pings, its announcements, and what its
# requests ask at a time
MAX_CONNECTIONS = 1024
MAX_HANDSHAKES = 64  # connections that have not said who they are
HANDSHAKE_SECONDS = 5.0
FRAME_SECONDS = 10.0  # from a request's first byte to its last
IDLE_SECONDS = 120.0
LEAST_READ_RATE = 64 * 1024.0  # bytes per second; a slower reader would keep blocks from eviction for ever
MAX_FETCH_SECONDS = 600.0  # whatever the asker says
MAX_HOT = 65_536
MAX_HEADS_SECONDS = 2.0  # that an answer waits for something to tell


def read_seconds(size: int) -> float:
    """How long sending so many bytes may take at most."""
    return PROGRESS_SECONDS + size / LEAST_READ_RATE


class PeerServer:
    """Listens on (host, port); port 0 takes a free one, see `port`. Without a directory it speaks version 1."""

    def __init__(
        self,
        host: str,
        port: int,
        source: Source,
        directory: Directory | None = None,
        taker: Taker | None = None,
        *,
        purposes: Callable[[], Purposes] = default_purposes,
        count: Callable[[str], None] = lambda _word: None,
        transport: Transport = CLEAR,
        status: Callable[[], bytes] | None = None,
        entitlement: Entitlement | None = None,
    ) -> None:
        """purposes: the bounds that hold now; `count(word)` is called for each bound that was hit and claim without
        a key. status: this member's, for whoever asks here. entitlement: who may ask about what; without it there are
        no keys."""
        self._transport = transport
        self._status = status
        self._source = source
        self._entitlement = entitlement or Entitlement(Keyring(), ("", ""))
        self._directory, self._taker = directory, taker
        self._versions = frames.VERSIONS if directory is not None else (frames.DIRECTORY_VERSION - 1,)
        self._purposes = purposes
        self._count = count
        self._gates = {name: Gate(f"{name}_out", count) for name in purposes()}
        self._paces = {name: Pace(f"{name}_out", count) for name in purposes()}
        self._shares = Shares(count)
        self._socket = listen(host, port, 64)
        self.port: int = self._socket.getsockname()[1]
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._handshakes = threading.BoundedSemaphore(MAX_HANDSHAKES)
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
        for sock in accepted(self._socket, lambda: self._closing, lambda: self._count("accepts_failed")):
            connection, address = Connection(sock), address_of(sock)
            if not self._admitted(address):
                connection.close()
                continue
            try:
                threading.Thread(target=self._run, args=(connection, address), name="kvpool-peer", daemon=True).start()
            except RuntimeError as error:  # the container has no thread left; others will be taken
                log.error("a member is turned away: %s", error)
                self._count("accepts_failed")
                connection.close()
                self._shares.greeted(address)
                self._handshakes.release()
                self._places.release()

    def _admitted(self, address: str) -> bool:
        """Whether there is a place for a connection and its handshake, which it then has."""
        if not self._shares.begins(address):
            return False
        if not self._places.acquire(blocking=False):
            self._count("bound_connections")
        elif not self._handshakes.acquire(blocking=False):
            self._count("bound_handshakes")
            self._places.release()
        else:
            return True
        self._shares.greeted(address)
        return False

    def _run(self, connection: Connection, address: str) -> None:
        with self._lock:
            self._open.add(connection)
        try:
            try:
                version = self._greet(connection)
            finally:
                self._shares.greeted(address)
                self._handshakes.release()
            if version is not None and connection.peer is not None:
                with self._shares.connected(connection.peer[0]) as found:
                    if found:
                        self._serve(connection, version)
        except PeerError as error:
            log.debug("peer connection ended: %s", error)
        except Exception:
            log.exception("peer connection failed")
        finally:
            connection.close()
            with self._lock:
                self._open.discard(connection)
            self._places.release()

    def _greet(self, connection: Connection) -> int | None:
        """The version agreed on; None where there is none, or the asker is of another pool."""
        until = time.monotonic() + HANDSHAKE_SECONDS
        try:
            self._transport.accepted(connection, HANDSHAKE_SECONDS)
            connection.until(until)
            hello, tail_length = connection.receive()
            if isinstance(hello, frames.Hello):
                self._transport.proved(connection, hello.member)
        except PeerError as error:
            self._count("handshakes_failed")
            if isinstance(error, TlsRefused) and error.secured:
                connection.settimeout(PROGRESS_SECONDS)
                connection.send(frames.Refused(error.reason))
            raise
        if not isinstance(hello, frames.Hello) or tail_length:
            self._count("handshakes_failed")
            raise PeerError("the connection does not begin with a hello")
        connection.settimeout(PROGRESS_SECONDS)
        version = frames.choose_version(hello.versions, self._versions)
        if version is None or hello.pool != self._source.pool:
            connection.send(frames.Refused("peer_version" if version is None else "other_pool"))
            return None
        connection.peer = hello.member, hello.incarnation
        connection.send(self._source.welcome(version))
        return version

    def _serve(self, connection: Connection, version: int) -> None:
        while True:
            connection.wait(IDLE_SECONDS)
            if connection.expired:
                self._count("tls_ended_by_expiry")
                raise PeerError("the certificate of the asker has ended")
            connection.until(time.monotonic() + FRAME_SECONDS)
            message, tail_length = connection.receive()
            with self._turn(connection, message):
                self._answer(connection, message, tail_length, version)

    @contextlib.contextmanager
    def _turn(self, connection: Connection, message: frames.AnyMessage) -> Iterator[None]:
        """Of what costs this worker computing. Streams, also those that an offer begins, have bounds of their own,
        and who waits for heads only waits."""
        if connection.peer is None or isinstance(message, frames.Fetch | Borrow | frames.Heads | frames.Offer):
            yield
            return
        with self._shares.turn(connection.peer[0]) as found:
            if not found:
                raise PeerError("the member asks more than can be answered")
            yield

    def _answer(self, connection: Connection, message: frames.AnyMessage, tail_length: int, version: int) -> None:
        certified = connection.certified
        match message:
            case frames.Ping():
                self._reply(connection, self._source.welcome(version))
            case frames.Status() if self._status is not None and version >= frames.STATUS_VERSION:
                self._reply(connection, frames.StatusTold(), self._status())
            case _ if certified is not None and certified.name.is_controller:
                raise PeerError(f"the controller asks for no {type(message).__name__}")
            case frames.Locate():
                asked = self._entitlement.view(connection, message.format, keys_of(connection, tail_length))
                held = self._source.holds(*asked)
                self._reply(connection, frames.Located(), bytes(held))
            case frames.Hot():
                entitled = self._entitlement.entitled(connection, message.format)
                blocks = self._source.hottest(message.format, min(message.limit, MAX_HOT)) if entitled else []
                self._reply(connection, frames.HotList(), frames.pack_hot(blocks))
            case frames.Describe():
                self._reply(connection, frames.Described(), self._source.description())
            case frames.Heads() if version >= frames.HEADS_VERSION:
                # in this order: whatever the asker has written there, also what is no number, gives a time
                seconds = min(MAX_HEADS_SECONDS, max(0.0, message.seconds))
                entitled = self._entitlement.entitled(connection, message.format)
                told = self._source.heads(message.format, message.since, seconds) if entitled else NOTHING
                self._reply(connection, *frames.pack_heads(told))
            case frames.Fetch():
                self._fetch(connection, message, keys_of(connection, tail_length))
            case frames.Offer() if version >= frames.OFFER_VERSION and self._taker is not None:
                self._take(self._taker, connection, message, tail_length)
            case Join() if version >= frames.LENDING_VERSION and not tail_length:
                self._reply(connection, self._joined(connection, message))
            case Borrow() if version >= frames.LENDING_VERSION:
                self._fetch(connection, message, keys_of(connection, tail_length))
            case frames.Entitle() if version >= frames.PROOF_VERSION and not tail_length:
                self._entitlement.answer(connection, message)
            case _:
                if self._directory is None or version < frames.DIRECTORY_VERSION or connection.peer is None:
                    raise PeerError(f"unexpected message {type(message).__name__}")
                self._keep(self._directory, connection, connection.peer, message, tail_length)

    def _take(self, taker: Taker, connection: Connection, message: frames.Offer, tail_length: int) -> None:
        if tail_length > frames.MAX_OFFER * frames.HOT_BYTES or tail_length % frames.HOT_BYTES or not connection.peer:
            raise PeerError(f"{tail_length} bytes are no offer of at most {frames.MAX_OFFER} blocks")
        blocks = frames.unpack_hot(connection.read(tail_length))
        # in this order: whatever the asker has written there, also what is no number, gives a time
        seconds = min(MAX_FETCH_SECONDS, max(0.0, message.seconds))
        if self._entitlement.entitled(connection, message.format):
            taken = taker.take(connection.peer, message.format, blocks, seconds, copy=message.copy)
        else:
            self._count("offered_without_key")
            taken = [False] * len(blocks)
        self._reply(connection, frames.Taken(), bytes(taken))

    def _keep(
        self,
        directory: Directory,
        connection: Connection,
        holder: tuple[str, str],
        message: frames.AnyMessage,
        tail_length: int,
    ) -> None:
        if max(map(len, holder)) > frames.MAX_NAME:  # nobody could read it in an answer
            raise PeerError("the name of a holder is over the limit")
        match message:
            case frames.Renew():
                self._reply(connection, directory.renew(holder))
            case frames.Announce():
                try:
                    groups, withdrawn = frames.split_announcement(message, keys_of(connection, tail_length))
                except frames.FrameError as error:
                    raise PeerError(str(error)) from None
                if (groups or withdrawn) and not self._entitlement.entitled_to_default(connection):
                    self._count("announced_without_key")
                    groups, withdrawn = {}, ()
                lease = directory.announce(holder, groups, withdrawn, fresh=message.fresh)
                self._reply(connection, frames.Announced(lease))
            case frames.Where():
                found = directory.where(self._entitlement.view_default(connection, keys_of(connection, tail_length)))
                rows = frames.pack_held([row for _, row in found])
                self._reply(connection, frames.Found([one for one, _ in found]), rows)
            case _:
                raise PeerError(f"unexpected message {type(message).__name__}")

    @staticmethod
    def _reply(connection: Connection, message: frames.AnyMessage, tail: bytes | memoryview = b"") -> None:
        connection.settimeout(PROGRESS_SECONDS)
        connection.send(message, tail, seconds=read_seconds(len(tail)))

    def _joined(self, connection: Connection, message: Join) -> Joined | frames.Refused:
        """One who is not entitled is told what one is who asks for a slab that is not there."""
        entitled = self._entitlement.entitled(connection, message.slab)
        try:
            return self._source.join(connection, message.slab if entitled else b"", message.end)
        except RdmaError as error:
            return frames.Refused(error.reason)

    def _fetch(self, connection: Connection, message: frames.Fetch | Borrow, keys: Sequence[bytes]) -> None:
        purpose = self._purposes().get(message.purpose)
        if purpose is None:
            raise PeerError(f"unknown purpose of a fetch: {message.purpose[:20]!r}")
        # the probe's block is of the format alone, and nobody's prompt
        slab = message.format
        if message.purpose != PROBE:
            slab, keys = self._entitlement.view(connection, message.format, keys)
        # in this order: whatever the asker has written there, also what is no number, gives a time
        until = time.monotonic() + min(MAX_FETCH_SECONDS, max(0.0, message.seconds))
        stopped = False
        asker = connection.peer[0] if connection.peer is not None else ""
        with self._gates[message.purpose].entered(0, asker, streams=purpose.sending.streams, room=0) as served:
            if served:
                try:
                    if isinstance(message, Borrow):
                        stopped = self._lend(connection, slab, keys, message.purpose, until)
                    else:
                        with self._source.blocks(slab, keys, message.purpose) as blocks:
                            stopped = self._stream(connection, message.purpose, blocks, len(keys) - 1, until)
                except PeerBusy:
                    served = False
        self._reply(connection, frames.FetchEnd(stopped) if served else frames.Refused("busy", BUSY_RETRY_SECONDS))

    def _rate(self, purpose: str) -> float:
        """Bytes per second that hold now."""
        return self._purposes()[purpose].sending.bytes_per_second

    def _in_time(self, purpose: str, size: int, before: int, until: float) -> bool:
        """Waits until these bytes, and what is owed, allow others at the purpose's pace. False, and counted, where the
        asker would not have waited for so long. before: bytes of the block or lot before, 0: there was none."""
        pace, rate = self._paces[purpose], lambda: self._rate(purpose)
        if pace.wait(size, rate, max(before, 1), until, hopeful=False) and time.monotonic() < until:
            return True
        self._count(f"bound_{purpose}_out_seconds")
        return False

    def _owe(self, purpose: str, size: int) -> None:
        """For bytes that nobody has waited for."""
        self._paces[purpose].owe(size, self._rate(purpose), max(size, 1))

    @contextlib.contextmanager
    def _ended(self, purpose: str) -> Iterator[None]:
        """Counts a reader that stands still, goes away or is too slow."""
        try:
            yield
        except PeerBusy:
            raise
        except PeerError:
            self._count(f"reads_ended_{purpose}")
            raise

    def _lend(self, connection: Connection, slab: bytes, keys: Sequence[bytes], purpose: str, until: float) -> bool:
        with self._source.lots(slab, keys, purpose) as lots, self._ended(purpose):
            return lend(
                connection,
                lots,
                len(keys) - 1,
                lambda before: self._in_time(purpose, 0, before, until),
                lambda size: self._owe(purpose, size),
                lambda blocks: self._source.taken(slab, purpose, blocks),
            )

    def _stream(
        self,
        connection: Connection,
        purpose: str,
        blocks: Iterator[tuple[int, bytes, memoryview]],
        last: int,
        until: float,
    ) -> bool:
        """Sends them at the purpose's pace; whether blocks were left out for which the asker would not have waited.
        Raises PeerBusy where that is all of them: it may be asked again. last: index of the last one."""
        sent = 0  # of the last block
        while True:
            if not self._in_time(purpose, sent, sent, until):
                if not sent:
                    raise PeerBusy(BUSY_RETRY_SECONDS)
                return True
            block = next(blocks, None)  # asked for when it can be sent: from here on it is kept from eviction
            if block is None:
                return False
            index, tag, data = block
            with self._ended(purpose):
                self._reply(connection, frames.Block(index, tag), data)
            sent = len(data)
            if index == last:  # the asker need not wait for what the next one owes
                self._owe(purpose, sent)
                return False
