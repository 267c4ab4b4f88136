"""The process of an RDMA device, over a device that copies memory: what it does with reads, deadlines and keys."""

import ctypes
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from kvpool_agent.peer.lending import End
from kvpool_agent.peer.rdma import requests as say
from kvpool_agent.peer.rdma.process import IN_FLIGHT, Server, gid_text
from kvpool_agent.peer.rdma.segments import segments
from kvpool_agent.peer.rdma.verbs import CHAIN, DEPTH
from kvpool_agent.peer.rdma.words import RdmaError

SIZE = 1 << 20
GID = bytes(10) + b"\xff\xff" + bytes([10, 77, 0, 1])
OTHER = End(5, 6, GID, 4096, 16)


class Part:
    """A part of a device that must be closed once."""

    def __init__(self, device: "Copying", name: str) -> None:
        self.device, self.name = device, name
        self.rkey, self.lkey = device.keys, 9
        device.keys += 1

    def close(self) -> None:
        self.device.closed.append(self.name)


@dataclass
class Copying:
    """A device whose reads are copies; `hold`: they are not carried out until told; `status`: of their completions."""

    errors = OSError
    gid = GID
    mtu = 4096
    hold: bool = False
    status: int = 0
    wrong: RdmaError | None = None
    keys: int = 100
    alarms: int = 0
    closed: list[str] = field(default_factory=list)
    posted: list[tuple[int, int, int]] = field(default_factory=list)
    done: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.events, self.alarm = os.pipe()

    def check_port(self) -> None:
        if self.wrong is not None:
            raise self.wrong

    def region(self, address: int, length: int) -> tuple[Any, Any]:
        return Part(self, "domain"), Part(self, "memory")

    def queue_pair(self, domain: Any) -> tuple[Any, End]:
        return Part(self, "pair"), End(self.keys, 1, GID, 4096, 16)

    def connect(self, pair: Any, own: End, other: End) -> None:
        pass

    def post(self, pair: Any, number: int, key: int, local_key: int, parts: Sequence[tuple[int, int, int]]) -> None:
        self.posted.append((number, key, len(parts)))
        if not self.hold:
            for there, here, size in parts:
                ctypes.memmove(here, there, size)
            self.done.append((number, self.status))

    def completed(self) -> list[tuple[int, int]]:
        done, self.done = self.done, []
        return done

    def arm(self) -> None:
        pass

    def disarm(self) -> None:
        os.read(self.events, 1)


class Asked:
    """A server, its device, and this side's end of the socket."""

    def __init__(self, device: Copying) -> None:
        self.device = device
        self.memory = ctypes.create_string_buffer(SIZE)
        self.base = ctypes.addressof(self.memory)
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.settimeout(10)
        self.server = Server(device, theirs, self.base, SIZE)
        self.theirs = theirs

    def ask(self, request: say.AnyRequest) -> say.AnyRequest:
        self.ours.send(say.encode(request))
        self.server.turn()
        return self.answer()

    def answer(self) -> say.AnyRequest:
        return say.decode(self.ours.recv(say.MAX_PACKET))

    def silent(self) -> bool:
        self.ours.setblocking(False)
        try:
            self.ours.recv(1)
        except BlockingIOError:
            return True
        finally:
            self.ours.settimeout(10)
        return False

    def linked(self, slab: int = 0, length: int = SIZE // 2) -> int:
        self.ask(say.Register(1, slab, 0, length))
        made = self.ask(say.Create(2, slab))
        assert isinstance(made, say.Created)
        assert self.ask(say.Connect(3, made.link, OTHER)) == say.Done(3)
        return made.link


@pytest.fixture
def asked(request: pytest.FixtureRequest) -> Iterator[Asked]:
    made = Asked(getattr(request, "param", Copying)())
    yield made
    made.ours.close()
    made.theirs.close()
    os.close(made.device.events)
    os.close(made.device.alarm)


def test_a_read_brings_its_segments_in_chains_and_is_answered_once_when_the_last_has_come(asked: Asked) -> None:
    link = asked.linked()
    count = 3 * DEPTH + 5
    content = os.urandom(64 * count)
    asked.memory[SIZE // 2 : SIZE // 2 + len(content)] = content
    parts = [(asked.base + SIZE // 2 + 64 * i, 64 * i, 64) for i in range(count)]
    asked.ours.send(say.encode(say.Read(7, link, 55, parts, 10.0)))
    while asked.silent():
        asked.server.turn()
    assert asked.memory[: len(content)] == content
    assert [size for *_, size in asked.device.posted] == [CHAIN] * (count // CHAIN) + [count % CHAIN]
    assert {key for _, key, _ in asked.device.posted} == {55}


def test_no_more_reads_are_handed_over_than_the_queue_holds(asked: Asked) -> None:
    asked.device.hold = True
    link = asked.linked()
    asked.ours.send(say.encode(say.Read(7, link, 1, [(0, 0, 64)] * 300, 30.0)))
    asked.server.turn()
    assert sum(size for *_, size in asked.device.posted) == DEPTH
    for number in range(8, 8 + 2 * IN_FLIGHT // DEPTH):
        asked.ours.send(say.encode(say.Create(100 + number, 0)))
        asked.server.turn()
        made = asked.answer()
        assert isinstance(made, say.Created)
        asked.ours.send(say.encode(say.Read(number, made.link, 1, [(0, 0, 64)] * 300, 30.0)))
        asked.server.turn()
    assert sum(size for *_, size in asked.device.posted) == IN_FLIGHT
    assert asked.silent()


@pytest.mark.parametrize(
    ("status", "reason"), [(9, "rdma_refused"), (10, "rdma_refused"), (12, "rdma_unreachable"), (4, "rdma_failed")]
)
def test_a_read_that_fails_is_told_by_name_when_its_queue_pair_is_gone(asked: Asked, status: int, reason: str) -> None:
    link = asked.linked()
    asked.device.status = status
    failed = asked.ask(say.Read(7, link, 1, [(asked.base, 0, 64)], 10.0))
    assert isinstance(failed, say.Failed) and (failed.number, failed.reason) == (7, reason)
    assert asked.device.closed == ["pair"]
    gone = asked.ask(say.Read(8, link, 1, [(asked.base, 0, 64)], 10.0))
    assert isinstance(gone, say.Failed) and gone.reason == "rdma_withdrawn"


def test_a_late_read_is_told_when_its_queue_pair_is_gone_and_what_completes_later_is_nobodys(asked: Asked) -> None:
    asked.device.hold = True
    link = asked.linked()
    asked.ours.send(say.encode(say.Read(7, link, 1, [(asked.base, 0, 64)], 0.05)))
    until = time.monotonic() + 10
    while asked.silent() and time.monotonic() < until:
        assert asked.device.closed == []
        asked.server.turn()
    assert asked.device.closed == ["pair"]
    asked.device.done.append((asked.device.posted[0][0], 0))
    asked.server.turn()
    assert asked.silent()


def test_a_slab_that_is_registered_anew_has_another_key_and_none_of_its_queue_pairs(asked: Asked) -> None:
    first = asked.ask(say.Register(1, 0, 0, 4096))
    link = asked.linked()
    again = asked.ask(say.Register(4, 0, 0, 4096))
    assert isinstance(first, say.Registered) and isinstance(again, say.Registered) and first.key != again.key
    assert asked.device.closed == ["memory", "domain", "pair", "memory", "domain"]  # in the order in which they hang
    assert isinstance(asked.ask(say.Connect(5, link, OTHER)), say.Failed)


@pytest.mark.parametrize("part", [(0, -64, 64), (0, SIZE // 2 - 63, 64), (0, 0, 0)])
def test_a_read_beyond_the_slab_is_refused_before_it_begins(asked: Asked, part: tuple[int, int, int]) -> None:
    link = asked.linked()
    failed = asked.ask(say.Read(7, link, 1, [part], 10.0))
    assert isinstance(failed, say.Failed) and failed.detail == "a read beyond the slab"
    assert asked.device.posted == []


def test_what_is_wrong_with_the_port_is_told_with_how_the_device_is(asked: Asked) -> None:
    asked.linked()
    assert asked.ask(say.Look(5)) == say.Seen(5, "10.77.0.1", 4096, 1, SIZE // 2)
    asked.device.wrong = RdmaError("rdma_port_down")
    assert asked.ask(say.Look(6)) == say.Seen(6, "10.77.0.1", 4096, 1, SIZE // 2, "rdma_port_down")


class Waking(Copying):
    """Whose reads are done when the alarm that was set for them has been taken, and not before."""

    def arm(self) -> None:
        self.alarms += 1
        os.write(self.alarm, b"!")

    def disarm(self) -> None:
        super().disarm()
        self.done.append((self.posted[-1][0], 0))


@pytest.mark.parametrize("asked", [Waking], indirect=True)
def test_a_completion_that_is_long_in_coming_is_waited_for_by_one_alarm(asked: Asked) -> None:
    asked.device.hold = True
    link = asked.linked()
    asked.ours.send(say.encode(say.Read(7, link, 55, [(asked.base + SIZE // 2, 0, 64)], 10.0)))
    while asked.silent():
        asked.server.turn()
    assert (asked.device.alarms, asked.server._links[link].reading) == (1, None)


def test_it_ends_with_the_worker(asked: Asked) -> None:
    assert asked.server.turn()
    asked.ours.close()
    assert not asked.server.turn()


def test_what_is_no_request_ends_it(asked: Asked) -> None:
    asked.ours.send(b"\xc1")
    with pytest.raises(msgspec.DecodeError):
        asked.server.turn()


def test_blocks_that_lie_one_after_another_at_both_ends_are_read_as_one() -> None:
    moves = [(1000, 0), (1010, 10), (1020, 20), (1030, 50), (2000, 60)]
    assert segments(moves, 10) == [(1000, 0, 30), (1030, 50, 10), (2000, 60, 10)]
    assert segments([], 10) == []


def test_a_segment_is_bounded_and_a_larger_block_still_one() -> None:
    size = 40 << 20
    assert [length for *_, length in segments([(i * size, i * size) for i in range(4)], size)] == [size] * 4
    assert [length for *_, length in segments([(0, 0), (2 * size, 2 * size)], 2 * size)] == [2 * size] * 2


def test_an_address_of_version_4_is_written_as_that() -> None:
    assert (gid_text(GID), gid_text(b"\xfd" + bytes(14) + b"\1")) == ("10.77.0.1", "fd00::1")
