"""The live view of the pool: addresses from a file or a DNS name and from other members, life from handshakes.

An address is a seed and nothing more; a member is known by its pod UID. Each address has a connection of its own on
which a ping goes out every second; one that was not answered within two seconds is no source any more.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvpool_agent.directory.learnt import Learnt
from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import Connection, PeerError
from kvpool_agent.peer.dial import HANDSHAKE_SECONDS, Dialer
from kvpool_agent.peer.tls import NotCertified
from kvpool_agent.store.heads import Union
from kvpool_contract.config import Members

log = logging.getLogger("kvpool.members")

REFRESH_SECONDS = 1.0
MAX_ADDRESSES = 256
HEADS_SECONDS = 0.1  # from one answer about heads to the next question, so that a busy member's come in lots


class SeedError(Exception):
    """The members' addresses can't be read now; the last ones stay."""


@dataclass(frozen=True)
class Member:
    """A member at an address; `welcome` is its last answer, `live` whether that is fresh, `error` what went wrong;
    `fields`: those of its format where it is another one than ours; `version`: of the peer protocol between us;
    `lease`: under which it keeps what this member has announced to it, 0 for none."""

    address: str
    live: bool = False
    welcome: frames.Welcome | None = None
    error: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    version: int = 0
    lease: int = 0


def read_seeds(members: Members) -> list[str]:
    """host:port of every member. Raises SeedError."""
    if members.file:
        try:
            lines = Path(members.file).read_text(errors="replace").splitlines()
        except OSError as error:
            raise SeedError(f"members file: {error}") from None
        return sorted({line.strip() for line in lines if line.strip() and not line.startswith("#")})[:MAX_ADDRESSES]
    host, _, port = members.dns.rpartition(":")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise SeedError(f"members name {host}: {error}") from None
    addresses = {str(entry[4][0]) for entry in found}
    return sorted(f"[{a}]:{port}" if ":" in a else f"{a}:{port}" for a in addresses)[:MAX_ADDRESSES]


class _Link(threading.Thread):
    """Keeps one address's connection and its member's last answer."""

    def __init__(
        self,
        address: str,
        dialer: Dialer,
        own_format: Callable[[], str],
        on_other: Callable[[str], None],
        on_told: Callable[["_Link", Sequence[tuple[str, str]]], None],
        heads: Union,
    ) -> None:
        super().__init__(name="kvpool-member", daemon=True)
        self._heads = heads
        self._dialer = dialer
        self._own_format = own_format
        self._on_other = on_other
        self._on_told = on_told
        self._described: tuple[str, str, str] | None = None  # the member, incarnation and format asked about
        self._fields: Mapping[str, Any] = {}
        self._ended = threading.Event()
        self.member = Member(address)
        self.tried = threading.Event()
        self.answered_at = 0.0

    def run(self) -> None:
        connection: Connection | None = None
        address = self.member.address
        while not self._ended.is_set():
            next_at = time.monotonic() + REFRESH_SECONDS
            try:
                if connection is not None and self._dialer.outdated(connection):
                    connection.close()
                    connection = None
                if connection is None:
                    self._heads.forget(address)
                    connection, welcome = self._dialer.handshake(address)
                    self._compare(welcome)
                else:
                    connection.settimeout(HANDSHAKE_SECONDS)
                    connection.send(frames.Ping())
                    welcome = self._dialer.expect_welcome(connection)
                version, lease = connection.version, self._renew(connection)
                self._hear_heads(connection, welcome, 0.0)  # of a source they are known before it is one
                self.answered_at = time.monotonic()
                if not self._describe(connection, welcome):
                    connection.close()
                    connection = None
                self._become(Member(address, True, welcome, fields=self._fields, version=version, lease=lease))
                self.tried.set()
                if connection is not None:
                    self._follow_heads(connection, welcome, next_at)
            except Exception as error:
                if not isinstance(error, PeerError):  # as without a descriptor left; the next look is another try
                    log.exception("%s: a look failed", address)
                if connection is not None:
                    connection.close()
                    connection = None
                self._dialer.drop_idle(address)  # whoever is at their other end did not answer here
                self._become(Member(address, False, self.member.welcome, str(error)))
                if not isinstance(error, NotCertified):
                    self.tried.set()
            self._ended.wait(max(0.0, next_at - time.monotonic()) if self.member.live else REFRESH_SECONDS)
        if connection is not None:
            connection.close()
        self._heads.forget(address)

    def _hear_heads(self, connection: Connection, welcome: frames.Welcome, seconds: float) -> bool:
        """Asks what has changed of the heads that the member holds, which may take so long; whether anything had. Where
        there are keys nobody is asked: a format's own name is no slab's then, and nothing is concluded from heads."""
        address, own = self.member.address, self._own_format()
        if connection.version < frames.HEADS_VERSION or not own or welcome.format != own or self._dialer.keyed:
            self._heads.forget(address)
            return False
        connection.settimeout(HANDSHAKE_SECONDS + seconds)
        told = self._dialer.heads(connection, bytes.fromhex(own), self._heads.number(address), seconds)
        self._heads.told(address, told)
        return bool(told.added or told.withdrawn)

    def _follow_heads(self, connection: Connection, welcome: frames.Welcome, until: float) -> None:
        """Hears of heads as they change, until the next ping."""
        while (left := until - time.monotonic()) > HEADS_SECONDS and not self._ended.wait(HEADS_SECONDS):
            if not self._hear_heads(connection, welcome, left - HEADS_SECONDS):
                return

    def _become(self, now: Member) -> None:
        before, self.member = self.member, now
        if before.live is not now.live or before.welcome != now.welcome:
            self._heads.names.poke()  # who may conclude anything from heads looks at the members again

    def _renew(self, connection: Connection) -> int:
        """The heartbeat towards a home, which tells of other members in return."""
        if connection.version < frames.DIRECTORY_VERSION:
            return 0
        renewed = self._dialer.renew(connection)
        self._on_told(self, renewed.members)
        return renewed.lease

    def _compare(self, welcome: frames.Welcome) -> None:
        """Tells when somebody else than before is at this address: what is known of that one is not true of this."""
        before = self.member.welcome
        if before is not None and (before.member, before.incarnation) != (welcome.member, welcome.incarnation):
            log.info("%s is now %s, incarnation %s", self.member.address, welcome.member, welcome.incarnation)
            self._on_other(self.member.address)

    def _describe(self, connection: Connection, welcome: frames.Welcome) -> bool:
        """Asks for the fields of a format that is not ours, once; whether the connection can go on. A peer that can't
        say is as live as before: the fields are for people."""
        own = self._own_format()
        if not own or welcome.format in ("", own):
            self._fields = {}
            self._described = None
            return True
        asked = (welcome.member, welcome.incarnation, welcome.format)
        if asked == self._described:
            return True
        self._described, self._fields = asked, {}
        try:
            self._fields = self._dialer.describe(connection, welcome.format)
        except PeerError as error:
            log.debug("%s does not say its format: %s", self.member.address, error)
            return False
        return True

    def end(self) -> None:
        self._ended.set()


class MemberView:
    """All members but this one."""

    def __init__(
        self,
        members: Members,
        dialer: Dialer,
        own_member: str,
        on_gone: Callable[[str], None],
        on_other: Callable[[str], None],
        own_format: Callable[[], str],
    ) -> None:
        """on_gone: the address is no member's any more; on_other: another member or incarnation has come to it;
        own_format: the fingerprint (hex) of this member's format, empty while it has none."""
        self.heads = Union()  # of the other members, by address
        self._seeds = members
        self._dialer = dialer
        self._own_format = own_format
        self._own = own_member
        self._on_gone = on_gone
        self._on_other = on_other
        self._links: dict[str, _Link] = {}
        self._learnt = Learnt(int(members.dns.rpartition(":")[2]) if members.dns else None)
        self._kept_learnt = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._read = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvpool-members", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        with self._lock:
            for link in self._links.values():
                link.end()

    def all(self) -> list[Member]:
        """Every other member, by address. A member is live if it answered within the last two pings."""
        with self._lock:
            links = list(self._links.values())
        fresh = time.monotonic() - (HANDSHAKE_SECONDS + REFRESH_SECONDS)
        found = []
        for link in links:
            member = link.member
            if member.welcome is not None and member.welcome.member == self._own:
                continue
            if member.live and link.answered_at < fresh:
                member = Member(member.address, False, member.welcome, "no answer within 2 s")
            found.append(member)
        return sorted(found, key=lambda m: m.address)

    def live(self, fingerprint: bytes) -> list[Member]:
        """Live members of this format."""
        wanted = fingerprint.hex()
        return [m for m in self.all() if m.live and m.welcome is not None and m.welcome.format == wanted]

    def settle(self, seconds: float) -> None:
        """Waits until every seed has been tried once, `seconds` at most."""
        until = time.monotonic() + seconds
        self._read.wait(seconds)
        with self._lock:
            links = list(self._links.values())
        for link in links:
            link.tried.wait(max(0.0, until - time.monotonic()))

    @property
    def learnt(self) -> int:
        """Addresses that are kept because other members have told them."""
        return self._kept_learnt

    def _told(self, by: _Link, members: Sequence[tuple[str, str]]) -> None:
        """Another member knows these, address and UID: those whom this one does not know are candidates. Nothing is
        taken of an address that was given up meanwhile: it tells of those who were given up together with it."""
        with self._lock:
            if self._links.get(by.member.address) is not by:
                return
            members_now = [link.member for link in self._links.values()]
            known = {m.welcome.member for m in members_now if m.live and m.welcome is not None}
            new = [address for address, uid in members if uid not in known and uid != self._own]
            self._learnt.hear([address for address in new if address not in self._links], time.monotonic())

    def _run(self) -> None:
        seeds: list[str] | None = None
        while not self._ended.is_set():
            try:
                seeds = read_seeds(self._seeds)
            except SeedError as error:
                log.debug("%s", error)
            try:
                if seeds is not None:
                    self._update([*seeds, *self._judge_learnt(seeds)][:MAX_ADDRESSES])
                    self._read.set()
            except Exception:
                log.exception("members: a look failed")
            self._ended.wait(REFRESH_SECONDS)

    def _judge_learnt(self, seeds: Sequence[str]) -> list[str]:
        """The learnt addresses to keep: not those of members that a seed leads to, nor of this one."""
        now = time.monotonic()
        with self._lock:
            known = {self._own}
            links = sorted(self._links.items(), key=lambda item: item[0] not in seeds)
            for address, link in links:
                if link.member.live and link.member.welcome is not None:
                    uid = link.member.welcome.member
                    if uid in known:
                        self._learnt.refuse(address, now)
                    else:
                        self._learnt.live(address, now)
                    known.add(uid)
            found = [address for address in self._learnt.addresses(now) if address not in seeds]
            self._kept_learnt = len(found)
            return found

    def _update(self, addresses: list[str]) -> None:
        with self._lock:
            gone = [address for address in self._links if address not in addresses]
            for address in gone:
                self._links.pop(address).end()
            for address in addresses:
                if address not in self._links:
                    link = _Link(address, self._dialer, self._own_format, self._on_other, self._told, self.heads)
                    try:
                        link.start()
                    except RuntimeError as error:  # the container has no thread left; the next look is another try
                        log.error("%s: %s", address, error)
                        break
                    self._links[address] = link
        for address in gone:
            self._on_gone(address)
