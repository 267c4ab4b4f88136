"""A member with an RDMA device, in the test's process: what moves blocks between agents, and nothing else of one. One
that is to be killed is in a process of its own: `member.py DEVICE BLOCKS`.

What a block's bytes are follows from its key, so every block in any arena can be checked. The device's own process is
the agent's, and so are both arenas' memory and the connection between them.
"""

import hashlib
import importlib
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rdma.cable import received
from replica import PATIENCE, WaitError, wait_for

from kvpool_agent.account import Account
from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.flows.answer import OwnBlocks
from kvpool_agent.flows.fetch import Fetcher, Wanted
from kvpool_agent.flows.reading import Reading
from kvpool_agent.keyring import Keyring
from kvpool_agent.peer.connection import Connection
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.peer.entitlement import Entitlement
from kvpool_agent.peer.rdma import requests as say
from kvpool_agent.peer.rdma.reader import Reader
from kvpool_agent.peer.rdma.transport import Link, Rdma
from kvpool_agent.peer.serve import PeerServer
from kvpool_agent.peer.tls import CLEAR, Transport
from kvpool_agent.policy.purposes import Purposes, purposes
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slab, Slabs
from kvpool_agent.store.tag import tag_of
from kvpool_contract import config
from kvpool_contract.names import format_fingerprint

POOL, FIELDS = "demo", {"engine": "rdma"}
FORMAT = format_fingerprint(FIELDS)
SLOT = 64 << 10
WAIT = 60.0
FETCH_SECONDS = PATIENCE * WAIT
# how long is waited for a device's process, by module
WAITS = {
    "kvpool_agent.peer.rdma.nic": ("LOOK_SECONDS", "START_SECONDS"),
    "kvpool_agent.peer.rdma.transport": ("LOOK_SECONDS", "ANSWER_SECONDS", "OPEN_SECONDS"),
}


def chain(name: str, blocks: int) -> list[bytes]:
    return [f"{name}:{n}".encode().ljust(16, b".")[:16] for n in range(blocks)]


def bytes_of(key: bytes, size: int = SLOT) -> bytes:
    return hashlib.shake_128(key).digest(1024) * (size // 1024)


def unpaced() -> Purposes:
    return purposes(config.Prewarm(), config.Loading(), config.Drain(), config.Replication())


class Probe:
    """What an engine's probe has shown: that it is what it says, until a test says otherwise."""

    withdrawn = False


class RdmaMember:
    """`devices`: those that it may use; `transport`: how it talks to others; `keyring`: its cache namespaces' keys."""

    def __init__(
        self,
        uid: str,
        devices: Sequence[str],
        slots: int = 128,
        *,
        kind: str = "Auto",
        transport: Transport = CLEAR,
        keyring: Keyring | None = None,
        slot_bytes: int = SLOT,
        huge_pages: bool = False,
    ) -> None:
        self.account, keyring, self.probe = Account(), keyring or Keyring(), Probe()
        identity = Identity(POOL, uid, secrets.token_hex(8))
        spaces = max(1, len(keyring.spaces))
        size = spaces * (slots * (slot_bytes + 64) + (64 << 10))
        memory = ArenaMemory.anonymous(size, huge_pages=huge_pages)
        self.memory, self.slabs = memory, Slabs(memory, 0.0, keyring)
        self.slab = self.slabs.open(FORMAT, FIELDS, slot_bytes)
        entitlement = Entitlement(keyring, (uid, identity.incarnation))
        self.dialer = Dialer(identity, transport, entitlement)
        rdma = config.Rdma(devices=tuple(devices), allowUnencrypted=True)
        told = config.AgentConfig(
            version=1, pool=POOL, arenaBytes=memory.size, members=config.Members(file="none"),
            tls=config.Tls(mode="Disabled"), transport=config.Transport(type=kind, rdma=rdma),
        )  # fmt: skip
        self.rdma = Rdma(told, memory, self._serving, self.account)
        self.reader = Reader(self.rdma, self.dialer, self.account)
        self.fetcher = Fetcher(self.dialer, Breakers(self.account), self.account, unpaced, self.reader)
        self.source = OwnBlocks(
            identity, self.slabs, Reading(self.account, unpaced), lambda: "Ready(warm)", self.probe,  # type: ignore[arg-type]
            rdma=self.rdma,
        )  # fmt: skip
        self.server = PeerServer(
            "127.0.0.1", 0, self.source, purposes=unpaced, transport=transport, entitlement=entitlement
        )
        self.server._versions = (6,)
        self.address = f"127.0.0.1:{self.server.port}"

    def _serving(self) -> Sequence[Slab]:
        return () if self.probe.withdrawn else self.slabs.all

    def start(self) -> "RdmaMember":
        self.server.start()
        self.rdma.start()
        return self

    def close(self) -> None:
        self.server.close()
        self.dialer.close()
        self.rdma.close()

    def until_ready(self) -> "RdmaMember":
        """Until a device is open and every slab can be read."""
        try:
            wait_for("a device", lambda: len(self.rdma._regions) >= len(self.slabs.all), WAIT, 0.02)
        except WaitError as error:
            raise WaitError(f"{error}: {self.rdma.snapshot()}") from None
        return self

    def until_withdrawn(self) -> None:
        until("nothing is registered", lambda: all(n.seen.registered == 0 for n in self.rdma._nics.values()))

    def link(self, connection: Connection, slab: Slab | None = None) -> Link:
        slab = slab or self.slab
        with self.rdma.reading(slab, 0) as nic:
            return self.rdma.link(connection, slab, nic)

    # -- blocks --------------------------------------------------------------------------------------

    def store(self, keys: Sequence[bytes], slab: Slab | None = None, rows: Sequence[bytes] | None = None) -> None:
        """rows: their bytes, where they do not follow from the keys."""
        slab = slab or self.slab
        slots = slab.arena.reserve(len(keys), time.monotonic())
        assert len(slots) == len(keys)
        for i, (key, slot) in enumerate(zip(keys, slots, strict=True)):
            slab.view(slot)[:] = bytes_of(key, slab.slot_bytes) if rows is None else rows[i]
            tag = tag_of(key, slab.view(slot))
            slab.arena.commit(key, keys[i - 1] if i else b"", slot, tag, foreign=False)

    def fetch(
        self, other: "RdmaMember | str", keys: Sequence[bytes], seconds: float = FETCH_SECONDS, slab: Slab | None = None
    ) -> str:
        slab, address = slab or self.slab, other if isinstance(other, str) else other.address
        wanted = [Wanted(key, keys[i - 1] if i else b"") for i, key in enumerate(keys)]
        return self.fetcher.fetch(slab, address, wanted, "demand", time.monotonic() + seconds)

    def holds(self, keys: Sequence[bytes], slab: Slab | None = None) -> int:
        """How many of the blocks are here; the bytes of each are compared with those that it must have."""
        slab = slab or self.slab
        lease, held = slab.arena.lease(keys, time.monotonic(), WAIT)
        for block in held:
            if block is not None:
                assert bytes(slab.view(block.slot)) == bytes_of(block.key, slab.slot_bytes)
        slab.arena.release(lease)
        return sum(block is not None for block in held)

    def moved(self, what: str) -> tuple[int, int]:
        transfer = self.account.transfers.get(what)
        return (transfer.blocks, transfer.bytes) if transfer is not None else (0, 0)

    def counted(self, begin: str) -> Mapping[str, int]:
        return {word: count for word, count in self.account.counters.items() if word.startswith(begin)}


@contextmanager
def members(*made: RdmaMember) -> Iterator[tuple[RdmaMember, ...]]:
    try:
        yield tuple(one.start() for one in made)
    finally:
        for one in made:
            one.close()


@contextmanager
def alone(device: str, blocks: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A member in a process of its own, which holds chain("alone", blocks), and its address."""
    command = [sys.executable, "-m", "rdma.member", device, str(blocks)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def read(link: Link, offset: int = 0) -> None:
    """One block of the other side's slab, into the first slot of this side's. Raises RdmaError."""
    part = (link.there.address + offset, 0, SLOT)
    link.nic.ask(lambda number: say.Read(number, link.number, link.there.key, [part], 5.0), say.Done, WAIT)


def until(what: str, holds: Callable[[], object]) -> None:
    wait_for(what, holds, WAIT, 0.02)


@contextmanager
def fetching(fetch: Callable[[], str]) -> Iterator[list[str]]:
    """A fetch beside what happens meanwhile; how it ended is in the list afterwards."""
    ended: list[str] = []
    thread = threading.Thread(target=lambda: ended.append(fetch()))
    thread.start()
    try:
        yield ended
    finally:
        thread.join(FETCH_SECONDS)


def until_reading(reader: RdmaMember, device: str, since: int) -> None:
    """A read is on its way, and some of its bytes have come."""
    until("a read is on its way", lambda: any(nic.in_flight for nic in reader.rdma._nics.values()))
    until("its first bytes", lambda: received(device) > since + 2 * SLOT)


def be_patient(change: Callable[[object, str, float], None]) -> None:
    """A device's process answers later where its processor is emulated, and is not at fault for it."""
    for path, names in WAITS.items():
        module = importlib.import_module(path)
        for name in names:
            change(module, name, PATIENCE * getattr(module, name))


def main() -> None:
    be_patient(setattr)
    device, blocks = sys.argv[1], int(sys.argv[2])
    with members(RdmaMember("alone", [device], 16 * blocks)) as (member,):
        member.store(chain("alone", blocks))
        print(member.until_ready().address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
