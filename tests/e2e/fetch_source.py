"""What tests of a fetch alone need: a slab, blocks that say which they are, a source of them, and time that obeys."""

import time
from collections.abc import Callable, Sequence

from kvpool_agent.flows.fetch import Wanted
from kvpool_agent.policy.purposes import Purposes, purposes
from kvpool_agent.store.arena import Arena
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of
from kvpool_contract.config import Drain, Loading, Prewarm, Replication

SLOT, SLOTS = 4096, 64
Land = Callable[[int, bytes, int, Callable[[memoryview], None]], None]


def key(n: int) -> bytes:
    return bytes([n]) * 16


def wanted(*numbers: int) -> list[Wanted]:
    return [Wanted(key(n), key(n - 1) if n else b"") for n in numbers]


def new_slab(writable_at: float = 0.0) -> Slab:
    return Slab(b"f" * 16, {}, SLOT, ArenaMemory.anonymous(SLOTS * SLOT), Arena(SLOTS, writable_at=writable_at))


def held(slab: Slab) -> list[int]:
    return [n for n in range(16) if slab.arena.held([key(n)]) == [True]]


def unpaced() -> Purposes:
    return purposes(Prewarm(maxBytesPerSecond=0), Loading(), Drain(), Replication())


def soon() -> float:
    return time.monotonic() + 10


class Source:
    """A dialer whose peer sends each block as `send` says; `asked` has the keys of each fetch; `stopped`: whether it
    says that it has left some out."""

    def __init__(self, send: Callable[[int, bytes, Land], None] | None = None, *, stopped: bool = False) -> None:
        self.send = send or whole
        self.stopped = stopped
        self.asked: list[list[bytes]] = []

    def fetch(
        self, address: str, fingerprint: bytes, keys: Sequence[bytes], purpose: str, deadline: float, land: Land
    ) -> bool:
        self.asked.append(list(keys))
        for index, one in enumerate(keys):
            self.send(index, one, land)
        return self.stopped


def whole(index: int, one: bytes, land: Land, length: int = SLOT, tag: bytes = b"") -> None:
    data = one * (length // 16)

    def read_into(view: memoryview) -> None:
        view[:] = data

    land(index, tag or tag_of(one, memoryview(data)), length, read_into)


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self, pauses: list[float]) -> None:
        self._now, self._pauses = time.monotonic(), pauses

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._pauses.append(seconds)
        self._now += seconds
