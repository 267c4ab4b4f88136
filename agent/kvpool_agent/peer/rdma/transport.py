"""This agent's RDMA: which devices it has and why not more, which slabs can be read, and by whom.

A slab is a region of its own in a protection domain of its own, so that a queue pair made for one slab reads no other,
whatever keys its owner has learnt. Its key is given on connections that have proved the right to the slab and is
changed, and all queue pairs on it are ended, when what had to be proved is another one now: within a second and a half
from the change of a key file. A queue pair ends with the connection that it was made on, and with its certificate.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from kvpool_agent.account import Account
from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import Connection, PeerError
from kvpool_agent.peer.lending import End, Join, Joined
from kvpool_agent.peer.rdma import nic as nics
from kvpool_agent.peer.rdma import requests as say
from kvpool_agent.peer.rdma.pauses import Pauses
from kvpool_agent.peer.rdma.words import RdmaError
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slab
from kvpool_contract import status as contract
from kvpool_contract.config import TCP, AgentConfig

log = logging.getLogger("kvpool.rdma")

TURN_SECONDS = 0.5
LOOK_SECONDS, ANSWER_SECONDS = 5.0, 10.0
OPEN_SECONDS = 10.0  # finding the way to another port may take the kernel seconds
PIN_RATE = 64 * 2**20  # bytes per second that registering memory takes at least
WHOLE_ARENA = -1  # the slab by whose number all of it is registered once, to see whether it can be


@dataclass(frozen=True)
class Region:
    """A slab as others read it through one device. `proof`: what had to be proved when the key was made."""

    address: int
    length: int
    key: int
    proof: bytes


@dataclass(frozen=True)
class Link:
    """A queue pair of this side's by which a slab of the other side's is read."""

    nic: nics.Nic
    number: int
    there: Joined


class Rdma:
    """Any thread may call; one follows. Without a call of `start` there is none."""

    def __init__(
        self,
        config: AgentConfig,
        memory: ArenaMemory,
        slabs: Callable[[], Sequence[Slab]],
        account: Account,
    ) -> None:
        """slabs: those of now that others may read, and that this agent reads into."""
        self._asked, self._rdma = config.transport.type, config.transport.rdma
        self._encrypted = config.tls.mode != "Disabled"
        self._memory, self._slabs, self._account = memory, slabs, account
        self._lock = threading.Lock()
        self._nics: dict[str, nics.Nic] = {}
        self._regions: dict[tuple[str, int], Region] = {}
        self._pinned: dict[str, float] = {}
        self._opened: set[Connection] = set()
        self._seen: tuple[str, ...] = ()  # devices of the last look
        self._devices = Pauses()
        self.peers = Pauses()
        self._why: RdmaError | None = RdmaError("rdma_looking" if self.wanted else "rdma_off")
        self._stop = threading.Event()

    @property
    def wanted(self) -> bool:
        return self._asked != TCP

    def ready(self, slab: Slab) -> bool:
        """Whether a device is open by which blocks can be read into the slab now."""
        with self._lock:
            return bool(self._usable(slab))

    def start(self) -> None:
        if not self.wanted:
            return
        if self._encrypted and not self._rdma.allowUnencrypted:
            self._why = RdmaError("rdma_unencrypted")
            return
        threading.Thread(target=self._run, name="kvpool-rdma", daemon=True).start()

    def close(self) -> None:
        self._stop.set()
        for nic in list(self._nics.values()):
            nic.close()

    # -- following -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._find()
                for name, nic in list(self._nics.items()):
                    self._keep(name, nic)
                self._end_expired()
            except Exception:
                log.exception("RDMA: a turn failed")
            self._stop.wait(TURN_SECONDS)
        self.close()  # of what came up meanwhile

    def _find(self) -> None:
        """Opens the devices that are there and not open, but for those that have just failed."""
        wanted = self._rdma.devices
        left = self._seen if wanted == () else wanted
        if self._devices.why("") or (left and all(n in self._nics or self._devices.why(n) for n in left)):
            return
        try:
            there = nics.look()
        except RdmaError as error:
            self._devices.failed("", error)
            self._told(error)
            return
        self._devices.succeeded("")
        chosen = [name for name in there if name in wanted or not wanted]
        self._seen = tuple(chosen)
        for name in set(wanted) - set(there):
            if self._devices.why(name) is None:
                absent = RdmaError("rdma_no_device", f"there is {', '.join(there)}, and not {name}")
                self._failed(name, absent, told=not chosen)
        for name in chosen:
            if name not in self._nics and self._devices.why(name) is None:
                self._open(name)

    def _open(self, name: str) -> None:
        nic = nics.Nic(name, self._memory)
        try:
            nic.start()
            pinned = self._pin(nic, WHOLE_ARENA, 0, self._memory.size)
            self._unpin(nic, WHOLE_ARENA)
        except RdmaError as error:
            nic.close()
            self._failed(name, error)
            return
        self._pinned[name] = pinned.seconds
        with self._lock:
            self._nics[name] = nic
        self._devices.succeeded(name)
        self._why = None
        log.info("RDMA: %s is open at %s; the arena was registered in %.2f s", name, nic.seen.address, pinned.seconds)
        self._account.event("rdma_open", device=name, seconds=round(pinned.seconds, 3))

    def _keep(self, name: str, nic: nics.Nic) -> None:
        """Looks after one that is open; registers what is to be read there."""
        try:
            nic.look(LOOK_SECONDS)
            wanted = {slab.number: slab for slab in self._slabs()}
            for number in {slab for device, slab in list(self._regions) if device == name} - set(wanted):
                with self._lock:
                    del self._regions[name, number]
                self._unpin(nic, number)
            for slab in wanted.values():
                self._register(name, nic, slab)
        except RdmaError as error:
            with self._lock:
                self._nics.pop(name, None)
                for key in [key for key in self._regions if key[0] == name]:
                    del self._regions[key]
            nic.close(error)
            self._failed(name, error)

    def _register(self, name: str, nic: nics.Nic, slab: Slab) -> None:
        proof = slab.space.proofs[0] if slab.space.proofs else b""
        region = self._regions.get((name, slab.number))
        if region is not None and region.proof == proof:
            return
        with self._lock:
            self._regions.pop((name, slab.number), None)
        offset = slab.memory.address - self._memory.address
        length = slab.arena.slot_count * slab.slot_bytes
        made = self._pin(nic, slab.number, offset, length)
        with self._lock:
            self._regions[name, slab.number] = Region(made.address, length, made.key, proof)
        if region is not None:
            self._account.count("rdma_keys_changed")

    def _failed(self, name: str, error: RdmaError, *, told: bool = True) -> None:
        """told: whether it is why none is used, where none is."""
        self._devices.failed(name, error)
        log.warning("RDMA: %s is not used: %s", name, error)
        self._account.count(f"device_{error.reason}")
        if told:
            self._told(error)

    def _told(self, error: RdmaError) -> None:
        """The reason where no device is open."""
        if not self._nics:
            if self._why is None or self._why.reason != error.reason:
                self._account.event("rdma_not_used", reason=error.reason, detail=error.detail)
            self._why = error

    @staticmethod
    def _pin(nic: nics.Nic, slab: int, offset: int, length: int) -> say.Registered:
        register = partial(say.Register, slab=slab, offset=offset, length=length)
        return nic.ask(register, say.Registered, ANSWER_SECONDS + length / PIN_RATE)

    @staticmethod
    def _unpin(nic: nics.Nic, slab: int) -> None:
        nic.ask(partial(say.Withdraw, slab=slab), say.Done, ANSWER_SECONDS)

    def _end_expired(self) -> None:
        with self._lock:
            ended = [connection for connection in self._opened if connection.expired]
        for connection in ended:
            self._forget(connection)
            connection.end_links()

    # -- joining -------------------------------------------------------------------------------------

    def _usable(self, slab: Slab) -> list[tuple[nics.Nic, Region]]:
        found = [(nic, self._regions.get((name, slab.number))) for name, nic in self._nics.items() if nic.alive]
        return [(nic, region) for nic, region in found if region is not None]

    def _best(self, slab: Slab) -> tuple[nics.Nic, Region]:
        """The device with the least to do. Raises RdmaError where there is none."""
        usable = self._usable(slab)
        if not usable:
            raise self._why or RdmaError("rdma_looking")
        return min(usable, key=lambda one: (one[0].in_flight, one[0].queue_pairs))

    @contextmanager
    def reading(self, slab: Slab, size: int) -> Iterator[nics.Nic]:
        """The device by which so many bytes are to be read into the slab: what it has to do until the context ends.
        Raises RdmaError where there is none."""
        with self._lock:
            nic, _ = self._best(slab)
            nic.in_flight += size
        try:
            yield nic
        finally:
            with self._lock:
                nic.in_flight -= size

    @staticmethod
    def own_fault(nic: nics.Nic) -> RdmaError | None:
        """What is wrong with this side's device, where something is: nobody is reached over a port that is down."""
        try:
            nic.look(LOOK_SECONDS)
        except RdmaError as error:
            return error
        return None

    def join(self, connection: Connection, slab: Slab | None, other: End) -> Joined:
        """As the source: lets another member read from a slab that it is entitled to. Raises RdmaError."""
        if slab is None:
            raise RdmaError("rdma_withdrawn")
        with self._lock:
            nic, region = self._best(slab)
            nic.queue_pairs += 1
        made = self._made(nic, slab)
        try:
            self._connect(nic, made.link, other)
        except BaseException:
            self._drop(nic, made.link)
            raise
        self._tie(connection, slab.id + other.gid, nic, made.link)
        # the region of now: it may have been changed since, and its queue pairs are gone then
        return Joined(made.end, region.address, region.length, region.key)

    def link(self, connection: Connection, slab: Slab, nic: nics.Nic) -> Link:
        """As the reader: this device's queue pair to the member at the other end of the connection, for its slab of the
        same id. Raises RdmaError, PeerError."""
        name = slab.id + nic.name.encode()
        there = connection.links.get(name)
        if isinstance(there, Link) and there.nic is nic:
            return there
        if connection.version < frames.LENDING_VERSION:
            raise RdmaError("rdma_peer_without", "it speaks an older version")
        with self._lock:
            nic.queue_pairs += 1
        made = self._made(nic, slab)
        try:
            answer = _asked(connection, Join(slab.id, made.end), slab.slot_bytes)
            self._connect(nic, made.link, answer.end)
        except BaseException:
            self._drop(nic, made.link)
            raise
        link = Link(nic, made.link, answer)
        self._tie(connection, name, nic, made.link, link)
        return link

    def _made(self, nic: nics.Nic, slab: Slab) -> say.Created:
        """A queue pair, which counts already."""
        try:
            return nic.ask(partial(say.Create, slab=slab.number), say.Created, ANSWER_SECONDS)
        except BaseException:
            with self._lock:
                nic.queue_pairs -= 1
            raise

    def _drop(self, nic: nics.Nic, link: int) -> None:
        nic.drop(link)
        with self._lock:
            nic.queue_pairs -= 1

    @staticmethod
    def _connect(nic: nics.Nic, link: int, end: End) -> None:
        try:
            nic.ask(partial(say.Connect, link=link, end=end), say.Done, OPEN_SECONDS)
        except RdmaError as error:
            if error.reason == "rdma_failed":  # no route to that address, or no neighbour that answers for it
                raise RdmaError("rdma_unreachable", error.detail) from None
            raise

    def _tie(self, connection: Connection, name: bytes, nic: nics.Nic, number: int, link: Link | None = None) -> None:
        """The queue pair ends with the connection; another one for the same slab and the same device of the reader's
        takes its place. Raises PeerError."""

        def end() -> None:
            self._drop(nic, number)
            self._forget(connection)

        connection.tie(name, link, end)
        with self._lock:  # only now: what it has taken the place of has just been forgotten
            self._opened.add(connection)
        if not connection.tied:  # closed meanwhile
            self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        with self._lock:
            self._opened.discard(connection)

    # -- what people see -----------------------------------------------------------------------------

    def why_not(self, address: str) -> str:
        """Why blocks of the member at this address come by TCP, empty where they come by RDMA or nobody has asked."""
        error = self.peers.last(address)
        return str(error) if error is not None else ""

    def snapshot(self) -> contract.Transport:
        with self._lock:
            open_now = dict(self._nics)
        devices = [
            contract.RdmaDevice(
                name,
                "ready",
                address=nic.seen.address,
                mtu=nic.seen.mtu,
                queue_pairs=nic.seen.queue_pairs,
                registered_bytes=nic.seen.registered,
                registration_seconds=round(self._pinned.get(name, 0.0), 3),
            )
            for name, nic in open_now.items()
        ]
        devices += [
            contract.RdmaDevice(name, "failed", error.reason, error.detail)
            for name, error in self._devices.failures()
            if name and name not in open_now
        ]
        why = None if open_now or not self.wanted else self._why
        return contract.Transport(
            self._asked,
            "RDMA" if open_now else "TCP",
            why.reason if why is not None else "",
            why.detail if why is not None else "",
            devices,
        )


def _asked(connection: Connection, question: Join, slot_bytes: int) -> Joined:
    """The other side's queue pair. Raises RdmaError where it has none for this member, PeerError."""
    connection.send(question)
    answer, tail_length = connection.receive()
    if isinstance(answer, frames.Refused):
        raise RdmaError("rdma_peer_without", answer.reason[:64])
    if not isinstance(answer, Joined) or tail_length or answer.length % slot_bytes:
        raise PeerError(f"bad answer to a join: {type(answer).__name__} with {tail_length} bytes")
    return answer
