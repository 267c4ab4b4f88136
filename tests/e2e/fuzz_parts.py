"""What stands for the rest of the world in the fuzz targets and beside mutants: a socket, a member's blocks, a home."""

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from kvpool_agent.directory.entries import Entries
from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import Connection
from kvpool_agent.peer.lend import Lot
from kvpool_agent.peer.lending import LEAST_MTU, MOST_MTU, End, Joined
from kvpool_agent.peer.rdma import requests as say
from kvpool_agent.peer.rdma.words import RdmaError
from kvpool_agent.peer.serve import MAX_FETCH_SECONDS
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.store.heads import Told

FORMAT = b"f" * 16
KEYS = [bytes([n]) * 16 for n in range(4)]
FIELDS = {"engine": "fuzzed"}
BLOCK = b"d" * 512
SLAB_BYTES = len(KEYS) * len(BLOCK)
END = End(7, 9, b"g" * 16, MOST_MTU, 16)
LOT = 2  # blocks that are lent at a time
HASH_BYTES, ROWS, ROW = 32, 8, 4096
MOST_ENTRIES = 64
KEY_BYTES = 16
CHAIN = b"".join(bytes([n]) * HASH_BYTES + bytes(4) for n in range(3))
PAIRS = b"".join(bytes([n]) * HASH_BYTES + bytes(HASH_BYTES + 8) for n in range(3))


_ALWAYS = os.open(os.devnull, os.O_RDONLY)


class Bytes(socket.socket):
    """Stands for a connected socket: gives the bytes, then the end of the connection, and keeps what is sent."""

    def __init__(self, data: bytes) -> None:  # no descriptor is made
        self._data, self._at, self.sent = data, 0, bytearray()

    def recv_into(self, buffer: Any, *_: Any) -> int:  # type: ignore[override]
        part = self._data[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def recv(self, size: int, flags: int = 0) -> bytes:
        part = self._data[self._at : self._at + size]
        if not flags & socket.MSG_PEEK:
            self._at += len(part)
        return part

    def sendmsg(self, parts: Any, *_: Any) -> int:  # type: ignore[override]
        for part in parts:
            self.sent += part
        return sum(len(part) for part in parts)

    def fileno(self) -> int:
        return _ALWAYS  # who polls finds that something has come

    def settimeout(self, value: float | None) -> None: ...
    def setsockopt(self, *_: Any) -> None: ...  # type: ignore[override]
    def shutdown(self, how: int) -> None: ...
    def close(self) -> None: ...
    def __del__(self) -> None: ...


def must(holds: object, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def must_be_keys(keys: Sequence[bytes]) -> None:
    must(len(keys) <= frames.MAX_KEYS, f"{len(keys)} keys at once")
    must(all(type(key) is bytes and len(key) == KEY_BYTES for key in keys), "something is no block key")


def must_be_an_end(end: End) -> None:
    must(0 <= end.queue_pair < 1 << 24 and 0 <= end.packet < 1 << 24, "no number of a queue pair or a packet")
    must(len(end.gid) == 16 and LEAST_MTU <= end.mtu <= MOST_MTU and 1 <= end.reads <= 255, "no port")


# -- between members -----------------------------------------------------------------------------------


class Shelf:
    """Four blocks; whatever is asked about must be keys."""

    pool = "pool"

    def welcome(self, version: int) -> frames.Welcome:
        must(version in frames.VERSIONS, "a version that nobody speaks")
        return frames.Welcome(version, "source", "inc", "Ready(warm)", FORMAT.hex(), len(KEYS))

    def holds(self, fingerprint: bytes, keys: Sequence[bytes]) -> list[bool]:
        must_be_keys(keys)
        return [key in KEYS for key in keys]

    def hottest(self, fingerprint: bytes, limit: int) -> list[HotBlock]:
        return [HotBlock(key, b"", 0, 1.0) for key in KEYS][: max(0, limit)]

    def heads(self, fingerprint: bytes, since: int, seconds: float) -> Told:
        must(0 <= since < 1 << 62 and seconds == seconds, "no number to begin from, or no time")
        return Told(7, True, (KEYS[0][:8],))

    def description(self) -> bytes:
        return frames.pack_fields(FIELDS)

    @contextlib.contextmanager
    def blocks(
        self, fingerprint: bytes, keys: Sequence[bytes], purpose: str
    ) -> Iterator[Iterator[tuple[int, bytes, memoryview]]]:
        must_be_keys(keys)
        yield ((index, b"t" * 16, memoryview(BLOCK)) for index, key in enumerate(keys) if key in KEYS)

    @contextlib.contextmanager
    def lots(self, fingerprint: bytes, keys: Sequence[bytes], purpose: str) -> Iterator[Iterator[Lot]]:
        must_be_keys(keys)
        places = [(KEYS.index(key) * len(BLOCK), b"t" * 16) if key in KEYS else None for key in keys]
        parts = [(first, places[first : first + LOT]) for first in range(0, len(places), LOT)]
        yield (Lot(first, 1.0, part, len(BLOCK) * (len(part) - part.count(None))) for first, part in parts)

    def taken(self, fingerprint: bytes, purpose: str, blocks: int) -> None:
        must(0 <= blocks <= LOT, "more blocks than were lent")

    def join(self, connection: Connection, fingerprint: bytes, other: End) -> Joined:
        must_be_an_end(other)
        if fingerprint != FORMAT:
            raise RdmaError("rdma_withdrawn")
        return Joined(END, 1 << 20, SLAB_BYTES, 5)


class Device:
    """Stands for a device that reads what was lent, and for the slab that it reads into."""

    slot_bytes = len(BLOCK)

    def __init__(self, there: Joined) -> None:
        must_be_an_end(there.end)
        self._there = there

    def view(self, slot: int) -> memoryview:
        must(0 <= slot < len(KEYS), "no slot")
        return memoryview(BLOCK)

    def ask(self, make: Any, _expected: Any, seconds: float) -> None:
        read: say.Read = make(number=1)
        must(len(say.encode(read)) <= say.MAX_PACKET, "a request that fits into no packet")
        must(0 <= read.seconds <= seconds, "a read without an end")
        begin, end = self._there.address, self._there.address + self._there.length
        for there, here, size in read.segments:
            must(begin <= there and there + size <= end, "a read beyond the slab there")
            must(here >= 0 and here + size <= SLAB_BYTES, "a read beyond the slots here")


class Basket:
    """What takes over all that is offered (kvpool_agent.peer.serve.Taker)."""

    def take(
        self, giver: tuple[str, str], slab: bytes, blocks: Sequence[HotBlock], seconds: float, *, copy: bool
    ) -> list[bool]:
        must_be_keys([key for block in blocks for key in (block.key, block.parent or block.key)])
        must(len(blocks) <= frames.MAX_OFFER, "an offer over its bound")
        must(0 <= seconds <= MAX_FETCH_SECONDS, "an offer without an end")
        return [True] * len(blocks)


class Board(Entries):
    """A home of so few entries that an input reaches its bounds."""

    def renew(self, holder: tuple[str, str]) -> frames.Renewed:  # type: ignore[override]
        return frames.Renewed(super().renew(holder), [("10.0.0.1:7700", "uid")])

    def announce(self, holder: Any, groups: Any, withdrawn: Any, *, fresh: bool) -> int:
        must_be_keys([*groups, *(key for keys in groups.values() for key in keys), *withdrawn])
        lease = super().announce(holder, groups, withdrawn, fresh=fresh)
        must(len(self) <= MOST_ENTRIES, "a home over its bound")
        return lease

    def where(self, keys: Sequence[bytes]) -> Any:
        must_be_keys(keys)
        return super().where(keys)
