"""Reading by RDMA, as the asking side does it: what was lent is read, checked, and told, over a device that copies."""

import time
from types import SimpleNamespace
from typing import Any

from fetch_source import SLOT, held, key, new_slab

from kvpool_agent.account import Account
from kvpool_agent.peer import frames
from kvpool_agent.peer.lending import Lent, pack_places
from kvpool_agent.peer.message import Message
from kvpool_agent.peer.rdma.reader import _Read
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of

BLOCKS, LOT = 4, 2


def bytes_of(n: int) -> bytes:
    return key(n) * (SLOT // 16)


class Lender:
    """A connection whose other side lends two lots, and the device that reads them; what happened in which order."""

    def __init__(self, slab: Slab) -> None:
        self.slab, self.events = slab, list[str]()
        starts = range(0, BLOCKS, LOT)
        self._tails = [
            pack_places([(n * SLOT, tag_of(key(n), memoryview(bytes_of(n)))) for n in range(first, first + LOT)])
            for first in starts
        ]
        self._told: list[tuple[Message, int]] = [
            *((Lent(first, 5.0), len(tail)) for first, tail in zip(starts, self._tails, strict=True)),
            (frames.FetchEnd(), 0),
        ]

    def receive(self) -> tuple[Message, int]:
        self.events.append("waits")
        return self._told.pop(0)

    def read(self, _length: int) -> bytes:
        return self._tails.pop(0)

    def send(self, _message: Message) -> None:
        pass

    def load(self, _size: int) -> None:
        pass

    def ask(self, make: Any, _expected: Any, _seconds: float) -> None:
        self.events.append("reads")
        for there, here, size in make.keywords["segments"]:
            for at in range(0, size, SLOT):
                self.slab.view((here + at) // SLOT)[:] = bytes_of((there + at) // SLOT)


def test_a_read_begins_with_the_first_bytes_that_the_device_moves_and_not_with_the_request() -> None:
    slab = new_slab()
    lender = Lender(slab)
    slots = slab.arena.reserve(BLOCKS, time.monotonic())
    there = SimpleNamespace(address=0, length=BLOCKS * SLOT, key=7)

    def landed(index: int, tag: bytes, slot: int) -> None:
        slab.arena.commit(key(index), b"", slot, tag, foreign=True)

    read = _Read(
        Account(),
        slab,
        [key(n) for n in range(BLOCKS)],
        slots,
        lambda: lender.events.append("begins"),
        landed,
        SimpleNamespace(nic=lender, number=1, there=there),  # type: ignore[arg-type]
        time.monotonic() + 10,
    )
    assert read.all(lender) is False  # type: ignore[arg-type]
    assert lender.events == ["waits", "begins", "reads", "waits", "begins", "reads", "waits"]
    assert (held(slab), slots) == ([0, 1, 2, 3], [])
