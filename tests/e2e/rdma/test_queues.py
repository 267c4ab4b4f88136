"""What a device's queues hold: how many queue pairs there are, and how much is on its way on one of them."""

import ctypes
import mmap
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from rdma import few_links
from rdma.member import WAIT, RdmaMember, chain, members
from replica import wait_for

from kvpool_agent.peer.rdma import nic as nics
from kvpool_agent.peer.rdma import requests as say
from kvpool_agent.peer.rdma.process import Server
from kvpool_agent.peer.rdma.verbs import CHAIN, DEPTH, Device

SIZE, PART = 1 << 20, 512
READS, PARTS = 3, 5 * DEPTH + 5  # so many times, and so much of each


def test_a_device_with_as_many_queue_pairs_as_it_may_have_is_named_and_blocks_come_by_tcp(
    devices: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nics, "MODULE", few_links.__name__)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    with members(RdmaMember("a", devices[:1]), RdmaMember("b", devices[1:])) as (a, b):
        of_a, of_b = chain("of a", 4), chain("of b", 4)
        a.store(of_a), b.store(of_b)
        a.until_ready(), b.until_ready()
        (nic,) = b.rdma._nics.values()
        create = partial(say.Create, slab=b.slab.number)
        links = [nic.ask(create, say.Created, WAIT).link for _ in range(few_links.LINKS)]
        assert (b.fetch(a, of_a), a.fetch(b, of_b)) == ("", "")
        assert (b.holds(of_a), a.holds(of_b)) == (4, 4)
        assert b.counted("fallback") == {"fallback_rdma_too_many": 1}
        assert a.rdma.why_not(b.address) == "rdma_peer_without: rdma_too_many"
        assert a.moved("rdma_in") == b.moved("rdma_in") == (0, 0)
        nic.drop(links[0])  # asked on the same socket: before what comes next
        more = chain("more", 4)
        a.store(more)
        assert (b.fetch(a, more), b.holds(more), b.moved("rdma_in")[0]) == ("", 4, 4)


class Reading:
    """A device's process, in this one, that reads out of the memory of another device; `completions`: what has
    completed, and `most`: how many of its reads were on their way at once."""

    def __init__(self, device: Device, other: Device) -> None:
        self._device, self._other = device, other
        self._memory = [mmap.mmap(-1, SIZE) for _ in range(2)]
        self.here, self.there = (ctypes.addressof(ctypes.c_char.from_buffer(memory)) for memory in self._memory)
        self.completions: list[tuple[int, int]] = []
        self._sizes: dict[int, int] = {}
        self.most = 0
        self._complete, self._post = device.completed, device.post
        device.completed, device.post = self._completed, self._posted  # type: ignore[method-assign]
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server = Server(device, theirs, self.here, SIZE)
        self._domain, self._region = other.region(self.there, SIZE)
        self._pair, end = other.queue_pair(self._domain)
        self.ask(say.Register(1, 0, 0, SIZE))
        made = self.ask(say.Create(2, 0))
        assert isinstance(made, say.Created)
        self._link = made.link
        other.connect(self._pair, end, made.end)
        assert self.ask(say.Connect(3, self._link, end)) == say.Done(3)

    def _completed(self) -> list[tuple[int, int]]:
        found = self._complete()
        self.completions += found
        return found

    def _posted(self, pair: Any, number: int, key: int, local_key: int, parts: Sequence[tuple[int, int, int]]) -> None:
        self._sizes[number] = len(parts)
        done = sum(self._sizes[completed] for completed, _ in self.completions)
        self.most = max(self.most, sum(self._sizes.values()) - done)
        self._post(pair, number, key, local_key, parts)

    def ask(self, request: say.AnyRequest) -> say.AnyRequest:
        self.ours.send(say.encode(request))
        self.ours.setblocking(False)
        answers: list[bytes] = []

        def answered() -> list[bytes]:
            self._server.turn()
            with suppress(BlockingIOError):
                answers.append(self.ours.recv(say.MAX_PACKET))
            return answers

        wait_for("an answer", answered, WAIT, 0.0)
        return say.decode(answers[0])

    def read(self, number: int, content: bytes) -> None:
        """Into the mirror place here, part by part."""
        self._memory[1][: len(content)] = content
        parts = [(self.there + at, at, PART) for at in range(0, len(content), PART)]
        assert self.ask(say.Read(number, self._link, self._region.rkey, parts, WAIT)) == say.Done(number)
        assert self._memory[0][: len(content)] == content

    def close(self) -> None:
        self.ask(say.Withdraw(99, 0))
        for part in (self._pair, self._region, self._domain):
            part.close()
        for device in (self._device, self._other):
            device._context.close()
        self.ours.close()


@contextmanager
def reading(devices: tuple[str, str]) -> Iterator[Reading]:
    made = Reading(Device(devices[0]), Device(devices[1]))
    try:
        yield made
    finally:
        made.close()


def test_reads_that_are_not_signalled_are_accounted_for_by_the_last_of_their_chain_and_requests_are_made_once(
    devices: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyverbs import wr

    made: list[object] = []
    closed: list[object] = []

    class Request(wr.SendWR):  # type: ignore[misc]
        def __init__(self, **fields: int) -> None:
            super().__init__(**fields)
            made.append(self)

        def close(self) -> None:
            closed.append(self)
            super().close()

    monkeypatch.setattr(wr, "SendWR", Request)
    with reading(devices) as it:
        for number in range(READS):
            it.read(10 + number, os.urandom(PARTS * PART))
        chains = READS * -(-PARTS // CHAIN)
        assert len(it.completions) == len(set(it.completions)) == chains
        assert {status for _, status in it.completions} == {0}
        (link,) = it._server._links.values()
        assert link.posted == link.done == READS * PARTS
        assert it.most == DEPTH
        assert (len(made), closed) == (2 * CHAIN, [])  # of two devices
