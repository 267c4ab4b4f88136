"""Members of a pool in the test's process: the worker's own parts on real sockets, without engine and supervisor.

What a block's bytes are follows from its key, so every block in any arena can be checked.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from replica import wait_for

from kvpool_agent.account import Account
from kvpool_agent.directory import locate
from kvpool_agent.directory import members as view
from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.directory.entries import Entries
from kvpool_agent.directory.homes import Homes
from kvpool_agent.directory.locate import Locator
from kvpool_agent.directory.members import MemberView
from kvpool_agent.flows.announce import Announcer
from kvpool_agent.flows.answer import OwnBlocks, OwnDirectory
from kvpool_agent.flows.fetch import Fetcher
from kvpool_agent.flows.handoff import HandOff
from kvpool_agent.flows.lookup import LookupFlow
from kvpool_agent.flows.orphans import OrphanCheck
from kvpool_agent.flows.others import Others
from kvpool_agent.flows.probe import ProbeFlow
from kvpool_agent.flows.reading import Reading
from kvpool_agent.flows.replicate import Replicator
from kvpool_agent.flows.request import Request
from kvpool_agent.flows.takeover import TakeOver
from kvpool_agent.keyring import Keyring
from kvpool_agent.peer import dial
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.peer.entitlement import Entitlement
from kvpool_agent.peer.serve import PeerServer
from kvpool_agent.peer.tls import CLEAR, Transport
from kvpool_agent.policy.boundary import NO_LIMIT, Blocks
from kvpool_agent.policy.groups import groups_of
from kvpool_agent.policy.homes import SETTLE_SECONDS
from kvpool_agent.policy.purposes import Purposes, purposes
from kvpool_agent.policy.sources import share
from kvpool_agent.store.headers import ARENA_HEADER_BYTES, SLOT_HEADER_BYTES, encode_fields
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slabs
from kvpool_agent.store.tag import tag_of
from kvpool_client.groups import FULL, Group
from kvpool_contract.config import Drain, Loading, Members, Prewarm, Replication
from kvpool_contract.names import format_fingerprint

POOL, FIELDS, SLOT = "pool", {"engine": "local"}, 64
FORMAT = format_fingerprint(FIELDS)
WAIT = 30.0
HEADERS = ARENA_HEADER_BYTES + len(encode_fields(FIELDS))


def bytes_of(key: bytes) -> bytes:
    return key * (SLOT // len(key))


def chain(name: str, blocks: int) -> list[bytes]:
    """Keys of a prompt; two names share none."""
    return [f"{name}:{n}".encode().ljust(16, b".")[:16] for n in range(blocks)]


class LocalMember:
    """One member. `ready`: whether it is a home; `start` lets others find it, `kill` ends it without a word."""

    def __init__(
        self,
        uid: str,
        members: Path,
        slots: int = 4096,
        *,
        load_seconds: float = 10.0,
        max_entries: int | None = None,
        announces: bool = True,
        directory: bool = True,
        keyring: Keyring | None = None,
        transport: Transport = CLEAR,
    ) -> None:
        """announces: whether it tells what it holds by itself. directory: without it it is of version 1. keyring: the
        keys of its cache namespaces, none where it is None. transport: TLS, or in clear."""
        self.uid, self.ready, self.withdrawn = uid, True, False
        self._seeds, self._announces = members, announces
        identity = Identity(POOL, uid, secrets.token_hex(8))
        self.life = (uid, identity.incarnation)
        self.account = Account()
        keyring = keyring or Keyring()
        self.slabs = Slabs(ArenaMemory.anonymous(slots * (SLOT + SLOT_HEADER_BYTES) + HEADERS), 0.0, keyring)
        self.slab = self.slabs.open(FORMAT, FIELDS, SLOT)
        entitlement = Entitlement(keyring, self.life)
        self.dialer = Dialer(identity, transport, entitlement)
        self.breakers = Breakers(self.account)
        self.members = MemberView(
            Members(file=str(members)), self.dialer, uid, self._gone, self.breakers.forget, FORMAT.hex
        )
        self.entries = Entries(self.account, **({} if max_entries is None else {"limit": max_entries}))
        self.homes = Homes(self.members, lambda: self.life if self.ready else None, lambda: Time.now)
        self.locator = Locator(
            self.members, self.dialer, self.breakers, self.account, self.homes if directory else None, self.entries
        )
        self.drain, self.replication = Drain(maxSeconds=WAIT), Replication(maxBytesPerSecond=1 << 20)
        self.fetcher = Fetcher(self.dialer, self.breakers, self.account, self._purposes)
        self.lookup = LookupFlow(self.locator, self.fetcher, self.account, load_seconds)
        self.load_seconds = load_seconds
        self.announcer = Announcer(
            self.slabs, uid, self.members, self.homes, self.entries, self.dialer, self.account, lambda: self.withdrawn
        )  # fmt: skip
        self.orphans = OrphanCheck(self.slabs, self.members, self.dialer, self.breakers)
        probe = ProbeFlow(0, self.members, self.dialer, self.account, lambda: None)
        source = OwnBlocks(identity, self.slabs, Reading(self.account, self._purposes), self._state, probe)
        own = OwnDirectory(identity, self.slabs, source, self.entries, self.members) if directory else None
        self.takeover = TakeOver(self.slabs, self.members, self.fetcher, self.account, lambda _copy: self.ready)
        others = Others(self.members, self.dialer)
        self.handoff = HandOff(self.slabs, others, self.dialer, self.account, lambda: self.drain)
        self.replicator = Replicator(
            self.slabs, others, self.dialer, self.account, lambda: self.replication.maxBytesPerSecond
        )
        self.server = PeerServer(
            "127.0.0.1",
            0,
            source,
            own,
            self.takeover,
            count=self.account.count,
            purposes=self._purposes,
            transport=transport,
            entitlement=entitlement,
        )
        self.address = f"127.0.0.1:{self.server.port}"

    def start(self, *, seed: bool = True) -> "LocalMember":
        """seed: whether others are told its address by the file of members."""
        self.server.start()
        if seed:
            with self._seeds.open("a") as file:
                file.write(f"{self.address}\n")
        self.members.start()
        if self._announces:
            self.announcer.start()
        return self

    def kill(self) -> None:
        self.server.close()
        self.announcer.close()
        self.members.close()
        self.lookup.close()
        self.locator.close()
        self.dialer.close()

    def leave(self) -> None:
        """Ends it, and its address is no seed any more."""
        self.kill()
        lines = self._seeds.read_text().splitlines()
        self._seeds.write_text("".join(f"{line}\n" for line in lines if line != self.address))

    def _purposes(self) -> Purposes:
        return purposes(Prewarm(), Loading(), self.drain, self.replication)

    def _state(self) -> str:
        return "Ready(warm)" if self.ready else "Warming"

    def _gone(self, address: str) -> None:
        self.dialer.forget(address)
        self.breakers.forget(address)

    # -- blocks --------------------------------------------------------------------------------------

    def store(self, keys: Sequence[bytes], start: int = 0) -> None:
        """Computes blocks [start, end) of a chain, as far as there is room."""
        arena = self.slab.arena
        lease, _ = arena.lease(keys, time.monotonic(), WAIT)
        for i in range(start, len(keys)):
            if arena.held([keys[i]]) == [True]:
                continue
            slots = arena.reserve(1, time.monotonic())
            if not slots:
                break
            self.slab.view(slots[0])[:] = bytes_of(keys[i])
            tag = tag_of(keys[i], self.slab.view(slots[0]))
            arena.commit(keys[i], keys[i - 1] if i else b"", slots[0], tag, foreign=False)
        arena.release(lease)

    def find(self, keys: Sequence[bytes]) -> list[bool]:
        """For each block whether the directory knows a live holder of it, this member included."""
        found = self.locator.holders(FORMAT, [keys], time.monotonic() + WAIT)
        own = self.slab.arena.held(keys)
        return [here or any(row[i] for row in found.held[0].values()) for i, here in enumerate(own)]

    def locate(self, keys: Sequence[bytes]) -> tuple[int, str]:
        """How long the run of blocks is that other members hold, and why it ends there; empty where it is whole."""
        found = self.locator.holders(FORMAT, [keys], float("inf"))
        run = [i for _, part in share(found.held[0], range(len(keys))) for i in part]
        assert run == list(range(len(run)))
        return len(run), "" if run and len(run) == len(keys) else found.reason_at(0, len(run))

    def missing_groups(self, keys: Sequence[bytes]) -> int:
        """How many groups of a chain are not found whole."""
        found = self.find(keys)
        return sum(not all(found[start:end]) for start, end in groups_of(len(keys)))

    def load(self, keys: Sequence[bytes]) -> int:
        """Plans a request; how many blocks lie ready. All of them are checked."""
        before = sum(self.account.misses.values())
        hits, lease = self.lookup.plan(self.slab, lacking(keys), time.monotonic() + self.load_seconds)
        self.slab.arena.release(lease)
        ready = len(hits[0])
        assert ready + sum(self.account.misses.values()) - before == len(keys)
        self.check()
        return ready

    def check(self) -> None:
        """No byte in the arena is another than it should be."""
        arena = self.slab.arena
        lease, blocks = arena.lease(arena.keys(), time.monotonic(), WAIT)
        for block in blocks:
            if block is not None:
                assert bytes(self.slab.view(block.slot)) == bytes_of(block.key)
        arena.release(lease)


def lacking(keys: Sequence[bytes]) -> Request:
    """A request of a model with full attention alone, whose engine holds none of these blocks."""
    return Request([Blocks(Group(0, FULL, 0, 1), [True] * len(keys))], [keys], NO_LIMIT)


def patient(patch: pytest.MonkeyPatch) -> None:
    """Members wait long for each other from now on: a busy machine makes nobody silent."""
    for module in (dial, view):
        patch.setattr(module, "HANDSHAKE_SECONDS", WAIT)
    patch.setattr(dial.Dialer.handshake, "__defaults__", (WAIT,))
    patch.setattr(locate, "LOCATE_SECONDS", WAIT)


def until(what: str, holds: Callable[[], object]) -> None:
    wait_for(what, holds, WAIT, 0.02)


class Time:
    """As the homes of all members know it: it passes when a test says so."""

    now = 0.0


def settle(members: Sequence[LocalMember]) -> None:
    """Time passes until what has changed among the members is long ago."""
    for member in members:
        member.homes.look(FORMAT)
    Time.now += SETTLE_SECONDS
    for member in members:
        member.homes.look(FORMAT)
        assert member.homes.settled


def until_known(members: Sequence[LocalMember]) -> None:
    """Until each member sees all others as they are."""
    lives = {member.life for member in members if member.ready}

    def known(one: LocalMember) -> bool:
        return set(one.homes.look(FORMAT).members.items()) == lives

    for one in members:
        until(f"{one.uid} sees all", lambda one=one: known(one))


def until_announced(members: Sequence[LocalMember]) -> None:
    """Until each member's blocks stand at their homes."""
    at = {member.uid: member for member in members}

    def announced(one: LocalMember) -> bool:
        view = one.homes.look(FORMAT)
        return all(
            key in keys_at(at[home], one.life)
            for key, head in one.slab.arena.placed()
            for home in view.homes(head)
            if home != one.uid and home in at
        )

    for one in members:
        until(f"{one.uid} has announced all", lambda one=one: announced(one))


def keys_at(home: LocalMember, holder: tuple[str, str]) -> set[bytes]:
    """What a home knows of a holder."""
    with home.entries._lock:
        record = home.entries._records.get(holder[0])
        return set(record.heads) if record is not None and record.holder == holder else set()
