"""Reading a member's blocks by RDMA into slots of the own arena, under the leases that the member gives for them.

The member tells where blocks lie and how long they stay there; the device brings them; their tags are checked as over
TCP, which also shows a block that has changed under the read. Whatever fails costs the connection, and the queue pair
with it, and the caller goes on over TCP. Where the other side is to blame it is not read by RDMA for a while.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from kvpool_agent.account import Account
from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import Connection, PeerBusy, PeerError
from kvpool_agent.peer.dial import Dialer
from kvpool_agent.peer.lending import MAX_PLACES, Borrow, Lent, Returned, unpack_places
from kvpool_agent.peer.rdma import requests as say
from kvpool_agent.peer.rdma.nic import Nic, NicLost
from kvpool_agent.peer.rdma.segments import segments
from kvpool_agent.peer.rdma.transport import Link, Rdma
from kvpool_agent.peer.rdma.words import RdmaError
from kvpool_agent.policy.purposes import PROBE
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of

log = logging.getLogger("kvpool.rdma")

# is told of a block that lies checked in its slot: its index, tag and slot
Landed = Callable[[int, bytes, int], None]
ANSWER_SECONDS = 5.0  # that the device's process may take beyond a read's own deadline


class Reader:
    """Any thread may call."""

    def __init__(self, rdma: Rdma, dialer: Dialer, account: Account) -> None:
        self._rdma, self._dialer, self._account = rdma, dialer, account

    def ready(self, slab: Slab, purpose: str) -> bool:
        """Whether a fetch into this slab for this purpose may be tried: a probe's rows lie in no slab."""
        return purpose != PROBE and self._rdma.ready(slab)

    def fetch(
        self,
        slab: Slab,
        address: str,
        keys: Sequence[bytes],
        purpose: str,
        deadline: float,
        slots: list[int],
        begins: Callable[[], None],
        landed: Landed,
    ) -> bool:
        """As Dialer.fetch; takes slots from the beginning of the list, which keeps those that were not filled. Uses
        half of the time at most. `begins` is called before bytes move, for each lot. Raises RdmaError where the rest is
        to be fetched otherwise, PeerBusy, PeerError."""
        if (pause := self._rdma.peers.why(address)) is not None:
            raise RdmaError(pause.reason, pause.detail)
        until = time.monotonic() + (deadline - time.monotonic()) / 2
        with self._rdma.reading(slab, len(keys) * slab.slot_bytes) as nic:
            try:
                with self._dialer.asking(address, slab.id, until - time.monotonic()) as connection:
                    connection.until(until)
                    link = self._rdma.link(connection, slab, nic)
                    read = _Read(self._account, slab, keys, slots, begins, landed, link, until)
                    borrow = Borrow(slab.id, purpose, max(0.0, until - time.monotonic()))
                    connection.send(borrow, frames.pack_keys(keys))
                    stopped = read.all(connection)
                    connection.until(None)
            except RdmaError as error:
                raise self._blamed(address, nic, error) from None
            except PeerBusy:
                raise
            except PeerError as error:  # the rest is asked for on another connection, which tells how the member is
                raise self._blamed(address, nic, RdmaError("rdma_connection_lost", str(error))) from None
        self._rdma.peers.succeeded(address)
        return stopped

    def _blamed(self, address: str, nic: Nic, error: RdmaError) -> RdmaError:
        """What has gone wrong, and the member is left alone where it, or the way to it, is to blame."""
        # what a read fails with when the own port is down depends on the driver
        unclear = error.reason in ("rdma_unreachable", "rdma_failed")
        fault = self._rdma.own_fault(nic) if unclear else None
        log.info("RDMA with %s: %s", address, fault or error)
        if fault is None and error.theirs:
            self._rdma.peers.failed(address, error)
        return fault or error


@dataclass
class _Read:
    """One fetch over one link."""

    account: Account
    slab: Slab
    keys: Sequence[bytes]
    slots: list[int]
    begins: Callable[[], None]
    landed: Landed
    link: Link
    until: float

    def all(self, connection: Connection) -> bool:
        """Takes one lot after the other; whether the source has left some out."""
        while True:
            message, tail_length = connection.receive()
            match message:
                case frames.FetchEnd():
                    return message.stopped
                case frames.Refused(reason="busy") if not tail_length:
                    raise PeerBusy(message.retry_after)
                case Lent() if tail_length <= MAX_PLACES:
                    seconds = min(self.until - time.monotonic(), max(0.0, message.seconds))
                    connection.send(Returned(self._take(message.first, connection.read(tail_length), seconds)))
                case _:
                    raise PeerError(f"bad answer to a borrow: {type(message).__name__} with {tail_length} bytes")

    def _take(self, first: int, packed: bytes, seconds: float) -> int:
        """Reads what was lent; returns the number of blocks."""
        moves = self._moves(first, packed)
        if moves:
            self.begins()
            self._read([(there, slot) for (_, _, there), slot in zip(moves, self.slots, strict=False)], seconds)
        size = self.slab.slot_bytes
        for index, tag, _ in moves:
            slot = self.slots[0]
            if tag_of(self.keys[index], self.slab.view(slot)) != tag:
                self.account.count("tag_failures")
                raise RdmaError("rdma_tag", "a block's bytes don't match their tag")
            del self.slots[0]
            self.account.moved("rdma_in", 1, size)
            self.landed(index, tag, slot)
        return len(moves)

    def _moves(self, first: int, packed: bytes) -> list[tuple[int, bytes, int]]:
        """(index, tag, address there) of the blocks that were lent."""
        try:
            places = unpack_places(packed)
        except ValueError as error:
            raise PeerError(str(error)) from None
        moves, size, there = [], self.slab.slot_bytes, self.link.there
        for index, place in enumerate(places, first):
            if place is not None:
                if place[0] % size or place[0] + size > there.length:
                    raise PeerError("a block beyond the slab")
                moves.append((index, place[1], there.address + place[0]))
        if first + len(places) > len(self.keys) or len(moves) > len(self.slots):
            raise PeerError("more blocks than were asked for")
        return moves

    def _read(self, moves: Sequence[tuple[int, int]], seconds: float) -> None:
        """moves: (address there, slot here)."""
        size, nic = self.slab.slot_bytes, self.link.nic
        parts = segments(((there, slot * size) for there, slot in moves), size)
        until = time.monotonic() + seconds
        try:
            for at in range(0, len(parts), say.MAX_SEGMENTS):
                left = max(0.0, until - time.monotonic())
                some, link = parts[at : at + say.MAX_SEGMENTS], self.link
                read = partial(say.Read, link=link.number, key=link.there.key, segments=some, seconds=left)
                nic.ask(read, say.Done, left + ANSWER_SECONDS)
        except NicLost as lost:
            if not lost.safe:  # until the process is dead, bytes may land there
                stuck = self.slots[:]
                self.slots.clear()
                nic.when_ended(lambda: self.slab.arena.give_back(stuck))
            raise
