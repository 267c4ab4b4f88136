"""The asking side: idle connections kept by address, one request at a time on each, every one with a deadline.

An address is no identity: pods come and go behind it. Who is there is said by a connection's own handshake. When it
names another member or incarnation than the last one did, idle connections of that one are closed, and a request that
was meant for it fails instead of being asked of the newcomer.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvpool_agent.keyring import Keyring
from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import Connection, PeerBusy, PeerError
from kvpool_agent.peer.entitlement import AGAIN_SECONDS, Entitlement
from kvpool_agent.peer.tls import CLEAR, Transport
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.policy.purposes import PROBE
from kvpool_agent.store.heads import Told

HANDSHAKE_SECONDS = 2.0
IDLE_KEPT = 8
MAX_STRANGERS = 4096
# is told the bytes of a request and its answer
Tally = Callable[[int], None]


@dataclass(frozen=True)
class Identity:
    """Who this agent is: its pool, its pod's UID, this worker's own random name, and the hash of its pod's template
    (empty: not known)."""

    pool: str
    member: str
    incarnation: str
    template: str = ""


class Dialer:
    """Requests to other members. Raises PeerError; any thread may call."""

    def __init__(
        self, identity: Identity, transport: Transport = CLEAR, entitlement: Entitlement | None = None
    ) -> None:
        """entitlement: who may be asked about what; without it there are no keys."""
        self._transport = transport
        self._entitlement = entitlement or Entitlement(Keyring(), (identity.member, identity.incarnation))
        self._strangers: dict[tuple[str, bytes], float] = {}  # who lacks a slab's key, and when that was found
        self._hello = frames.Hello(list(frames.VERSIONS), identity.pool, identity.member, identity.incarnation)
        self._lock = threading.Lock()
        self._idle: dict[str, list[Connection]] = {}
        self._present: dict[str, tuple[str, str]] = {}

    @property
    def keyed(self) -> bool:
        """Whether cache namespaces have keys here."""
        return self._entitlement.keyed

    def handshake(self, address: str, seconds: float = HANDSHAKE_SECONDS) -> tuple[Connection, frames.Welcome]:
        """A new connection, greeted."""
        connection = Connection.dial(address, seconds)
        try:
            self._transport.dialed(connection, address, seconds)
            connection.settimeout(seconds)
            connection.send(self._hello)
            welcome = self.expect_welcome(connection)
            self._transport.greeted(connection, address)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            changed = self._present.get(address) != connection.peer
            self._present[address] = welcome.member, welcome.incarnation
        if changed:
            self.drop_idle(address)
        return connection, welcome

    def outdated(self, connection: Connection) -> bool:
        """Whether a new connection should take the place of this idle one: a certificate is another one now."""
        return self._transport.outdated(connection)

    def expect_welcome(self, connection: Connection) -> frames.Welcome:
        message, tail_length = connection.receive()
        if isinstance(message, frames.Refused):
            raise PeerError(f"refused: {message.reason}")
        if not isinstance(message, frames.Welcome) or tail_length:
            raise PeerError(f"no handshake: the peer answered {type(message).__name__}")
        if message.version not in frames.VERSIONS:
            raise PeerError(f"no handshake: the peer chose version {message.version}, which was not offered")
        self._transport.proved(connection, message.member)
        peer = message.member, message.incarnation
        if connection.peer not in (None, peer):
            raise PeerError("the peer has become another one in the middle of a connection")
        connection.peer, connection.version = peer, message.version
        return message

    @staticmethod
    def describe(connection: Connection, fingerprint: str) -> dict[str, Any]:
        """The fields of the member's format, whose fingerprint (hex) it has told; empty where it does not say."""
        connection.send(frames.Describe())
        message, tail_length = connection.receive()
        if not isinstance(message, frames.Described) or tail_length > frames.MAX_FIELDS:
            raise PeerError(f"bad answer to describe: {type(message).__name__} with {tail_length} bytes")
        tail = connection.read(tail_length)
        try:
            return frames.unpack_fields(tail, fingerprint) if tail else {}
        except frames.FrameError as error:
            raise PeerError(str(error)) from None

    def fields(self, address: str, fingerprint: str, seconds: float) -> dict[str, Any]:
        """The fields of this format (hex), which the member has told to have; empty where it does not say."""
        with self._lent(address, seconds) as connection:
            return self.describe(connection, fingerprint)

    def locate(
        self, address: str, fingerprint: bytes, keys: Sequence[bytes], seconds: float, moved: Tally = lambda _: None
    ) -> list[bool]:
        """For each key whether the member holds it; of a cache namespace that it holds no key of, nothing is asked."""
        return [state == frames.HELD for state in self.located(address, fingerprint, keys, seconds, moved)]

    def located(
        self, address: str, fingerprint: bytes, keys: Sequence[bytes], seconds: float, moved: Tally = lambda _: None
    ) -> bytes:
        """As locate, the bytes of frames.Located."""
        nothing = bytes(len(keys))
        if self._is_stranger(address, fingerprint):
            return nothing
        with self._lent(address, seconds) as connection, _tallied(connection, moved):
            if not self._shares(address, connection, fingerprint):
                return nothing
            connection.send(frames.Locate(fingerprint), frames.pack_keys(keys))
            message, tail_length = connection.receive()
            if isinstance(message, frames.Refused):
                return nothing
            if not isinstance(message, frames.Located) or tail_length != len(keys):
                raise PeerError(f"bad answer to a lookup: {type(message).__name__} with {tail_length} bytes")
            return connection.read(tail_length)

    def where(
        self, address: str, keys: Sequence[bytes], seconds: float, moved: Tally = lambda _: None
    ) -> list[tuple[tuple[str, str], list[bool]]]:
        """Who has announced which of the keys to this home: member and incarnation, and for each key whether."""
        with self._lent(address, seconds) as connection, _tallied(connection, moved):
            _needs_directory(connection)
            if not self._entitlement.shares_default(connection):
                return []
            connection.send(frames.Where(), frames.pack_keys(keys))
            message, tail_length = connection.receive()
            if not isinstance(message, frames.Found) or tail_length > frames.MAX_HOLDERS * ((len(keys) + 7) // 8):
                raise PeerError(f"bad answer to a lookup: {type(message).__name__} with {tail_length} bytes")
            try:
                rows = frames.unpack_held(message, connection.read(tail_length), len(keys))
            except frames.FrameError as error:
                raise PeerError(str(error)) from None
            return list(zip(message.holders, rows, strict=True))

    def announce(
        self,
        address: str,
        groups: Mapping[bytes, Sequence[bytes]],
        withdrawn: Sequence[bytes],
        seconds: float,
        *,
        fresh: bool,
    ) -> int:
        """Tells a home what is held, by the first key of its group, and what is not any more; returns its lease."""
        with self._lent(address, seconds) as connection:
            _needs_directory(connection)
            if not self._entitlement.shares_default(connection):
                raise PeerError("the home holds no key of the default cache namespace")
            message = frames.Announce([len(keys) for keys in groups.values()], len(withdrawn), fresh)
            connection.send(message, frames.pack_announcement(groups, withdrawn))
            answer, tail_length = connection.receive()
            if not isinstance(answer, frames.Announced) or tail_length:
                raise PeerError(f"bad answer to an announcement: {type(answer).__name__} with {tail_length} bytes")
            return answer.lease

    @staticmethod
    def renew(connection: Connection) -> frames.Renewed:
        """Keeps what was announced to the member at the other end."""
        connection.send(frames.Renew())
        answer, tail_length = connection.receive()
        if not isinstance(answer, frames.Renewed) or tail_length:
            raise PeerError(f"bad answer to a renewal: {type(answer).__name__} with {tail_length} bytes")
        return answer

    @staticmethod
    def heads(connection: Connection, fingerprint: bytes, since: int, seconds: float) -> Told:
        """What has changed of the heads that the member holds; it may take so many seconds to say."""
        connection.send(frames.Heads(fingerprint, since, seconds))
        message, tail_length = connection.receive()
        if not isinstance(message, frames.HeadsTold) or tail_length != frames.heads_bytes(message):
            raise PeerError(f"bad answer about heads: {type(message).__name__} with {tail_length} bytes")
        return frames.unpack_heads(message, connection.read(tail_length))

    def hot(self, address: str, fingerprint: bytes, limit: int, seconds: float) -> list[HotBlock]:
        """The member's hot list; empty for a cache namespace that it holds no key of."""
        if self._is_stranger(address, fingerprint):
            return []
        with self._lent(address, seconds) as connection:
            if not self._shares(address, connection, fingerprint):
                return []
            connection.send(frames.Hot(fingerprint, limit))
            message, tail_length = connection.receive()
            if isinstance(message, frames.Refused):
                return []
            if not isinstance(message, frames.HotList) or tail_length > 64 * limit:
                raise PeerError(f"bad answer to a hot list: {type(message).__name__} with {tail_length} bytes")
            try:
                return frames.unpack_hot(connection.read(tail_length))
            except frames.FrameError as error:
                raise PeerError(str(error)) from None

    def welcome(self, address: str, seconds: float) -> frames.Welcome:
        """How the member is now."""
        with self._lent(address, seconds) as connection:
            connection.send(frames.Ping())
            return self.expect_welcome(connection)

    def shares(self, address: str, slab: bytes, seconds: float) -> bool:
        """Whether the member holds the key of the slab's cache namespace, or that has none."""
        if self._is_stranger(address, slab):
            return False
        with self._lent(address, seconds) as connection:
            return self._shares(address, connection, slab)

    def offer(
        self, address: str, fingerprint: bytes, blocks: Sequence[HotBlock], deadline: float, *, copy: bool = False
    ) -> list[bool]:
        """Hands blocks to a member, which fetches what it wants of them; for each whether it holds it then.

        deadline: on the monotonic clock, for everything. copy: whether this member keeps them."""
        with self._lent(address, deadline - time.monotonic()) as connection:
            if connection.version < (frames.COPY_VERSION if copy else frames.OFFER_VERSION):
                raise PeerError(f"the peer speaks version {connection.version}, which takes nothing over")
            if not self._shares(address, connection, fingerprint):
                raise PeerError("the member holds no key of this cache namespace")
            message = frames.Offer(fingerprint, max(0.0, deadline - time.monotonic()), copy)
            connection.send(message, frames.pack_hot(blocks))
            connection.settimeout(deadline - time.monotonic())
            answer, tail_length = connection.receive()
            if not isinstance(answer, frames.Taken) or tail_length != len(blocks):
                raise PeerError(f"bad answer to an offer: {type(answer).__name__} with {tail_length} bytes")
            return [held == 1 for held in connection.read(tail_length)]

    def fetch(
        self,
        address: str,
        fingerprint: bytes,
        keys: Sequence[bytes],
        purpose: str,
        deadline: float,
        land: Callable[[int, bytes, int, Callable[[memoryview], None]], None],
    ) -> bool:
        """Streams blocks in order until the source has sent what it has, or, then True, what its bounds allowed.

        For each one that it holds, `land(index, tag, length, read_into)` must read exactly `length` bytes. deadline:
        on the monotonic clock, for everything.
        """
        with self._lent(address, deadline - time.monotonic()) as connection:
            if purpose != PROBE and not self._shares(address, connection, fingerprint):
                raise PeerError("the member holds no key of this cache namespace")
            connection.send(
                frames.Fetch(fingerprint, purpose, max(0.0, deadline - time.monotonic())),
                frames.pack_keys(keys),
            )
            connection.until(deadline)
            before = -1  # the index of the last block: they come in order, each once
            while True:
                message, tail_length = connection.receive()
                if isinstance(message, frames.FetchEnd):
                    connection.until(None)
                    return message.stopped
                if isinstance(message, frames.Refused):
                    if message.reason == "busy" and before < 0 and not tail_length:
                        connection.until(None)
                        raise PeerBusy(message.retry_after)
                    raise PeerError(f"refused: {message.reason}")
                if not isinstance(message, frames.Block) or not before < message.index < len(keys):
                    raise PeerError(f"bad answer to a fetch: {type(message).__name__}")
                before = message.index
                if message.tag:
                    land(message.index, message.tag, tail_length, connection.read_into)

    @contextmanager
    def asking(self, address: str, slab: bytes, seconds: float) -> Iterator[Connection]:
        """A connection for one request about this slab. Raises PeerError, also where the member holds no key of it."""
        with self._lent(address, seconds) as connection:
            if not self._shares(address, connection, slab):
                raise PeerError("the member holds no key of this cache namespace")
            yield connection

    def _is_stranger(self, address: str, slab: bytes) -> bool:
        found_at = self._strangers.get((address, slab), float("-inf"))
        return time.monotonic() < found_at + AGAIN_SECONDS and found_at > self._entitlement.changed_at

    def _shares(self, address: str, connection: Connection, slab: bytes) -> bool:
        """Whether the member holds the slab's key; who does not is left alone for some seconds."""
        now = time.monotonic()
        if self._entitlement.shares(connection, slab):
            return True
        if len(self._strangers) > MAX_STRANGERS:
            self._strangers.clear()
        self._strangers[(address, slab)] = now
        return False

    @contextmanager
    def _lent(self, address: str, seconds: float) -> Iterator[Connection]:
        """A connection for one request; it is kept only if that ended well, or was refused as busy."""
        if seconds <= 0:
            raise PeerError("the deadline has passed")
        connection = self._kept(address)
        if connection is None:
            meant = self._present.get(address)
            connection, _ = self.handshake(address, min(seconds, HANDSHAKE_SECONDS))
            if meant not in (None, connection.peer):
                connection.close()
                raise PeerError("another member, or another incarnation, has come to this address")
        connection.settimeout(seconds)
        try:
            yield connection
        except PeerBusy:
            self._keep(address, connection)
            raise
        except BaseException:
            connection.close()
            raise
        self._keep(address, connection)

    def _keep(self, address: str, connection: Connection) -> None:
        with self._lock:
            kept = self._idle.setdefault(address, [])
            current = self._present.get(address) == connection.peer and not self._transport.outdated(connection)
            if len(kept) < IDLE_KEPT and current:
                kept.append(connection)
                return
        connection.close()

    def _kept(self, address: str) -> Connection | None:
        """An idle connection that the other side has not closed meanwhile, as a restarted one has."""
        while True:
            with self._lock:
                idle = self._idle.get(address)
                connection = idle.pop() if idle else None
            if connection is None or (connection.quiet and not self._transport.outdated(connection)):
                return connection
            connection.close()

    def forget(self, address: str) -> None:
        """Nobody is known at this address any more."""
        with self._lock:
            self._present.pop(address, None)
        self.drop_idle(address)

    def drop_idle(self, address: str) -> None:
        """Closes the idle connections to an address: those of whom is not there any more, or does not answer."""
        with self._lock:
            idle = self._idle.pop(address, [])
        for connection in idle:
            connection.close()

    def close(self) -> None:
        for address in list(self._idle):
            self.forget(address)


@contextmanager
def _tallied(connection: Connection, moved: Tally) -> Iterator[None]:
    before = connection.moved
    try:
        yield
    finally:
        moved(connection.moved - before)


def _needs_directory(connection: Connection) -> None:
    if connection.version < frames.DIRECTORY_VERSION:
        raise PeerError(f"the peer speaks version {connection.version}, which has no directory")
