"""A member that serves another's blocks, one of them altered under a valid tag: the fidelity tests' negative control.

It speaks the real peer protocol from the test's own process. What it serves passes every check that bytes can pass;
only their content is wrong, so an engine that loads it must answer differently.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from replica import Pool
from trusted import transport

from kvpool_agent.peer import frames
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.peer.serve import PeerServer
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.store.tag import tag_of

LOOPBACK = "127.0.0.1"
POOL = "demo"


def hot_list(pool: Pool, source: str, fingerprint: bytes) -> list[HotBlock]:
    """All blocks that the member at host:port has counted."""
    dialer = Dialer(Identity(POOL, "test-uid", "test"), transport(pool, "test-uid"))
    try:
        return dialer.hot(source, fingerprint, 10_000, 5)
    finally:
        dialer.close()


def rows_of(among: Pool, source: str, fingerprint: bytes, keys: Sequence[bytes]) -> dict[bytes, bytearray]:
    """These blocks of the member at host:port by their keys, checked by their tags."""
    data: dict[bytes, bytearray] = {}

    def land(index: int, tag: bytes, length: int, read_into: Callable[[memoryview], None]) -> None:
        row = bytearray(length)
        read_into(memoryview(row))
        assert tag_of(keys[index], memoryview(row)) == tag
        data[keys[index]] = row

    dialer = Dialer(Identity(POOL, "altering-uid", "altering"), transport(among, "altering-uid"))
    dialer.fetch(source, fingerprint, keys, "demand", time.monotonic() + 60, land)
    dialer.close()
    return data


def alter_row(row: bytearray, part: int = 30) -> None:
    """Overwrites a thirtieth, or another part, in the middle of a block with an ordinary number (0.75 in either
    type)."""
    start, length = len(row) // 2, len(row) // part
    row[start : start + length] = b"\x3f" * length


class HoldingMember:
    """Serves these blocks, and tags them as they are then."""

    pool = POOL

    def __init__(self, among: Pool, fingerprint: bytes, data: dict[bytes, bytearray]) -> None:
        self._fingerprint = fingerprint
        self._data = data
        self.served = 0
        self._server = PeerServer(LOOPBACK, 0, self, transport=transport(among, "altering-uid"))
        self._server.start()
        self.address = f"{LOOPBACK}:{self._server.port}"

    def close(self) -> None:
        self._server.close()

    # -- kvpool_agent.peer.serve.Source ----------------------------------------------------------------

    def welcome(self, version: int) -> frames.Welcome:
        fingerprint = self._fingerprint.hex()
        return frames.Welcome(version, "altering-uid", "altering", "Ready(warm)", fingerprint, len(self._data))

    def holds(self, fingerprint: bytes, keys: Sequence[bytes]) -> list[bool]:
        return [fingerprint == self._fingerprint and key in self._data for key in keys]

    def description(self) -> bytes:
        return b""

    def hottest(self, fingerprint: bytes, limit: int) -> list[HotBlock]:
        return []

    @contextmanager
    def blocks(
        self, fingerprint: bytes, keys: Sequence[bytes], purpose: str
    ) -> Iterator[Iterator[tuple[int, bytes, memoryview]]]:
        def each() -> Iterator[tuple[int, bytes, memoryview]]:
            for index, key in enumerate(keys):
                if key not in self._data:
                    continue
                data = memoryview(self._data[key])
                self.served += 1
                yield index, tag_of(key, data), data

        yield each()


class AlteringMember(HoldingMember):
    """Holds a copy of the given blocks of the member at host:port."""

    def __init__(self, among: Pool, source: str, fingerprint: bytes, keys: Sequence[bytes]) -> None:
        super().__init__(among, fingerprint, rows_of(among, source, fingerprint, keys))

    def alter(self, key: bytes, part: int = 30) -> None:
        alter_row(self._data[key], part)
