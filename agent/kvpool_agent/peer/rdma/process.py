"""The process of one RDMA device: owns its regions, queue pairs and completions, and does what the worker asks.

    python3 -m kvpool_agent.peer.rdma.process --look
    python3 -m kvpool_agent.peer.rdma.process --device NAME --arena-fd N --arena-bytes N --control-fd N [--huge-pages]

It lives as long as the worker that has started it: with that one its leases are gone, so nobody may read any more. One
thread: it waits for requests and completions, and looks for the latter by itself while there are any to come. A read
that fails or is late costs its queue pair, and is answered when that is destroyed: from then on nothing can land.
"""

import argparse
import contextlib
import ctypes
import ipaddress
import json
import mmap
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvpool_agent.peer.lending import End
from kvpool_agent.peer.rdma import requests as say
from kvpool_agent.peer.rdma.verbs import CHAIN, DEPTH, Device, devices
from kvpool_agent.peer.rdma.words import RdmaError
from kvpool_agent.store import huge
from kvpool_contract import core_dumps

MAX_LINKS = 512
IN_FLIGHT = 1024  # reads at a time over all queue pairs: all of them may fail at once, and each then completes
SPINS = 64  # looks for a completion before it is waited for
WAIT_SECONDS = 0.5
STATUS_REMOTE_INVALID, STATUS_REMOTE_ACCESS, STATUS_REMOTE_FAULT, STATUS_RETRIES = 9, 10, 11, 12
_NUMBERS = 1 << 32


class Verbs(Protocol):
    """A device (verbs.Device)."""

    errors: type[Exception]
    events: int
    gid: bytes

    @property
    def mtu(self) -> int: ...
    def check_port(self) -> None: ...
    def region(self, address: int, length: int) -> tuple[Any, Any]: ...
    def queue_pair(self, domain: Any) -> tuple[Any, End]: ...
    def connect(self, pair: Any, own: End, other: End) -> None: ...
    def post(self, pair: Any, number: int, key: int, local_key: int, parts: Sequence[tuple[int, int, int]]) -> None: ...
    def completed(self) -> list[tuple[int, int]]: ...
    def arm(self) -> None: ...
    def disarm(self) -> None: ...


@dataclass
class _Region:
    domain: Any
    memory: Any
    address: int
    length: int


@dataclass
class _Link:
    """A queue pair. `reading`: the number of the request that is being served, with what is left of it; `posted` and
    `done` count its reads since the link began."""

    slab: int
    pair: Any
    end: End
    reading: int | None = None
    key: int = 0
    waiting: list[tuple[int, int, int]] = field(default_factory=list)
    posted: int = 0
    done: int = 0
    deadline: float = 0.0


class Server:
    """Answers requests; `turn` is one round of the loop."""

    def __init__(self, device: Verbs, control: socket.socket, base: int, size: int) -> None:
        """base, size: the arena in this process's memory."""
        self._device, self._control = device, control
        self._base, self._size = base, size
        self._regions: dict[int, _Region] = {}
        self._links: dict[int, _Link] = {}
        self._last_link = 0
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(device.events, select.POLLIN)
        self._armed = False

    def turn(self) -> bool:
        """False when the worker is gone."""
        for descriptor, _ in self._poll.poll(1000 * self._patience()):
            if descriptor == self._control.fileno():
                if not self._take():
                    return False
            else:
                with contextlib.suppress(self._device.errors):
                    self._device.disarm()
                self._armed = False
        self._complete()
        self._expire()
        self._feed()
        return True

    def _patience(self) -> float:
        """Seconds to wait for something to happen: none while completions come, whose looking for costs less."""
        deadlines = [link.deadline for link in self._links.values() if link.reading is not None]
        if not deadlines:
            return WAIT_SECONDS
        if any(self._complete() for _ in range(SPINS)):
            return 0.0
        if not self._armed:
            self._device.arm()
            self._armed = True
            if self._complete():  # what came before the alarm was set sets none off
                return 0.0
        return min(WAIT_SECONDS, max(0.0, min(deadlines) - time.monotonic()))

    def _take(self) -> bool:
        """Serves one request; False at the end."""
        try:
            packet = self._control.recv(say.MAX_PACKET)
        except OSError:
            return False
        if not packet:
            return False
        request = say.decode(packet)
        try:
            answer = self._answer(request)
        except RdmaError as error:
            answer = say.Failed(request.number, error.reason, error.detail)
        if answer is not None:
            self._say(answer)
        return True

    def _say(self, answer: say.AnyRequest) -> None:
        with contextlib.suppress(OSError):  # the worker is gone, as the next turn sees
            self._control.send(say.encode(answer))

    def _answer(self, request: say.AnyRequest) -> say.AnyRequest | None:
        match request:
            case say.Look():
                return self.seen(request.number)
            case say.Register():
                return self._register(request)
            case say.Withdraw():
                self._withdraw(request.slab)
            case say.Create():
                return self._create(request)
            case say.Connect():
                link = self._link(request.link)
                try:
                    self._device.connect(link.pair, link.end, request.end)
                except RdmaError:
                    self._drop(request.link)
                    raise
            case say.Read():
                self._read(request)
                return None
            case say.Drop():
                self._drop(request.link)
            case _:
                raise RdmaError("rdma_failed", f"unexpected request {type(request).__name__}")
        return say.Done(request.number)

    def seen(self, number: int) -> say.Seen:
        try:
            self._device.check_port()
            wrong = ("", "")
        except RdmaError as error:
            wrong = (error.reason, error.detail)
        registered = sum(region.length for region in self._regions.values())
        return say.Seen(number, gid_text(self._device.gid), self._device.mtu, len(self._links), registered, *wrong)

    # -- regions and queue pairs ---------------------------------------------------------------------

    def _register(self, request: say.Register) -> say.Registered:
        if request.offset < 0 or request.length <= 0 or request.offset + request.length > self._size:
            raise RdmaError("rdma_failed", "a region beyond the arena")
        self._withdraw(request.slab)
        address, began = self._base + request.offset, time.monotonic()
        domain, memory = self._device.region(address, request.length)
        self._regions[request.slab] = _Region(domain, memory, address, request.length)
        return say.Registered(request.number, address, memory.rkey, time.monotonic() - began)

    def _withdraw(self, slab: int) -> None:
        for number in [number for number, link in self._links.items() if link.slab == slab]:
            self._drop(number, "rdma_withdrawn")
        region = self._regions.pop(slab, None)
        if region is not None:
            region.memory.close()
            region.domain.close()

    def _create(self, request: say.Create) -> say.Created:
        region = self._regions.get(request.slab)
        if region is None:
            raise RdmaError("rdma_withdrawn")
        if len(self._links) >= MAX_LINKS:
            raise RdmaError("rdma_too_many")
        pair, end = self._device.queue_pair(region.domain)
        self._last_link += 1
        self._links[self._last_link] = _Link(request.slab, pair, end)
        return say.Created(request.number, self._last_link, end)

    def _link(self, number: int) -> _Link:
        if number not in self._links:
            raise RdmaError("rdma_withdrawn")
        return self._links[number]

    def _drop(self, number: int, reason: str = "rdma_withdrawn", detail: str = "") -> None:
        """Destroys a queue pair, and then tells who waits for its read."""
        link = self._links.pop(number, None)
        if link is not None:
            link.pair.close()
            if link.reading is not None:
                self._say(say.Failed(link.reading, reason, detail))

    # -- reads ---------------------------------------------------------------------------------------

    def _read(self, request: say.Read) -> None:
        link = self._link(request.link)
        region = self._regions[link.slab]
        if link.reading is not None or not request.segments:
            raise RdmaError("rdma_failed", "a read beside another one, or of nothing")
        if any(here < 0 or size <= 0 or here + size > region.length for _, here, size in request.segments):
            raise RdmaError("rdma_failed", "a read beyond the slab")
        link.reading, link.key = request.number, request.key
        link.waiting = [(there, region.address + here, size) for there, here, size in request.segments]
        link.deadline = time.monotonic() + request.seconds
        self._feed()

    def _feed(self) -> None:
        """Hands reads to the device as far as there is room."""
        room = IN_FLIGHT - sum(link.posted - link.done for link in self._links.values())
        for number, link in list(self._links.items()):
            while link.waiting and link.posted - link.done <= DEPTH - CHAIN and room >= CHAIN:
                parts, link.waiting = link.waiting[:CHAIN], link.waiting[CHAIN:]
                link.posted += len(parts)
                room -= len(parts)
                memory = self._regions[link.slab].memory
                identity = number * _NUMBERS + link.posted % _NUMBERS
                try:
                    self._device.post(link.pair, identity, link.key, memory.lkey, parts)
                except RdmaError as error:
                    self._drop(number, error.reason, error.detail)
                    break

    def _complete(self) -> bool:
        """Takes what has completed; whether there was something."""
        found = self._device.completed()
        for identity, status in found:
            number, count = divmod(identity, _NUMBERS)
            link = self._links.get(number)
            if link is None:  # of a queue pair that is gone
                continue
            if status:
                self._drop(number, *told(status))
                continue
            link.done += (count - link.done) % _NUMBERS  # reads complete in order: the last one stands for all
            if link.reading is not None and link.done == link.posted and not link.waiting:
                request, link.reading = link.reading, None
                self._say(say.Done(request))
        return bool(found)

    def _expire(self) -> None:
        now = time.monotonic()
        for number, link in list(self._links.items()):
            if link.reading is not None and now >= link.deadline:
                self._drop(number, "rdma_late")


def told(status: int) -> tuple[str, str]:
    """What the status of a completion means."""
    if status == STATUS_REMOTE_ACCESS:
        return "rdma_refused", "the other side's key is not valid any more"
    if status in (STATUS_REMOTE_INVALID, STATUS_REMOTE_FAULT):
        return "rdma_refused", f"status {status} of a read"
    if status == STATUS_RETRIES:
        return "rdma_unreachable", "the other side does not acknowledge"
    return "rdma_failed", f"status {status} of a read"


def gid_text(gid: bytes) -> str:
    """As an address; one of version 4 as that."""
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)


def serve(options: argparse.Namespace) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # with the worker's end, however that comes
    control = socket.socket(fileno=options.control_fd)
    memory = mmap.mmap(options.arena_fd, options.arena_bytes)
    if options.huge_pages:
        huge.advise(memory)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    try:
        device = Device(options.device)
    except RdmaError as error:
        control.send(say.encode(say.Failed(0, error.reason, error.detail)))
        return
    server = Server(device, control, base, options.arena_bytes)
    control.send(say.encode(server.seen(0)))
    with contextlib.suppress(KeyboardInterrupt):
        while server.turn():
            pass
    os._exit(0)  # the kernel takes everything back; destructors of what was torn down under us may not come through


def main() -> None:
    parser = argparse.ArgumentParser(prog="kvpool_agent.peer.rdma.process")
    parser.add_argument("--look", action="store_true", help="name the devices as JSON, and end")
    parser.add_argument("--device")
    parser.add_argument("--arena-fd", type=int)
    parser.add_argument("--arena-bytes", type=int)
    parser.add_argument("--control-fd", type=int)
    parser.add_argument("--huge-pages", action="store_true", help="the arena's, which this process may touch first")
    options = parser.parse_args()
    core_dumps.forbid()
    if not options.look:
        serve(options)
        return
    found: dict[str, Any] = {"devices": [], "reason": "", "detail": ""}
    try:
        found["devices"] = devices()
    except RdmaError as error:
        found |= {"reason": error.reason, "detail": error.detail}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
