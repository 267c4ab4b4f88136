"""A slab with a disk tier, for tests of the tier without an engine: blocks that say which they are."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from replica import wait_for

from kvpool_agent.account import Account
from kvpool_agent.costs import Costs
from kvpool_agent.flows.disk import DiskSource
from kvpool_agent.flows.fetch import InFlight, Wanted
from kvpool_agent.keyring import Keyring, Space
from kvpool_agent.store.arena import Arena
from kvpool_agent.store.disk.folder import FOLDER
from kvpool_agent.store.disk.tier import DiskTier
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of
from kvpool_contract.config import CacheNamespace, Disk

FORMAT = b"f" * 16
MIB = 1 << 20


def key(n: int) -> bytes:
    return n.to_bytes(8, "big") * 2


def wait_until(true: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    wait_for(what, true, seconds, 0.01)


class DiskSlab:
    """`slots` slots of `slot_bytes`, and a disk tier in the folder. keys: those of its cache namespace, that of now
    first; without, files lie in clear."""

    def __init__(
        self,
        path: Path,
        slots: int = 96,
        slot_bytes: int = 8192,
        size: int = 0,
        keys: Sequence[bytes] = (),
        space: str = "acme",
        pool: str = "chat",
    ) -> None:
        self.path, self.slot_bytes, self.keys = path, slot_bytes, keys
        self.account = Account()
        self.keyring = Keyring()
        if keys:
            self.keyring.spaces = [Space(CacheNamespace(name=space, keyFile=""))]
            self.keyring.pool = pool
            self.take(*keys)
        self.tier = DiskTier(Disk(path=str(path), bytes=size), self.account, lambda: [self.slab], self.keyring)
        memory = ArenaMemory.anonymous(slots * slot_bytes)
        self.slab = Slab(FORMAT, {}, slot_bytes, memory, Arena(slots), self.keyring.default, below=self.tier)
        self.costs = Costs()
        self.source = DiskSource(self.tier, self.account, InFlight(), self.costs)

    def start(self) -> "DiskSlab":
        self.tier.start()
        wait_until(lambda: self.tier.status().state != "opening", "the tier opened")
        return self

    def close(self) -> None:
        self.tier.close()
        wait_until(lambda: self.tier.ended, "the tier ended")

    def take(self, *keys: bytes) -> None:
        """Its cache namespace goes over to these keys."""
        self.keyring.default.take(keys)

    def again(self, **changes: Any) -> "DiskSlab":
        """Another life with an empty arena on the same folder."""
        self.close()
        return self.beside(**changes).start()

    def beside(self, **changes: Any) -> "DiskSlab":
        """Another one on the same folder, not started."""
        same = {"slots": self.slab.arena.slot_count, "slot_bytes": self.slot_bytes, "keys": self.keys}
        return DiskSlab(self.path, **{**same, **changes})

    def bytes_of(self, n: int) -> bytes:
        return (key(n) * (self.slot_bytes // 16 + 1))[: self.slot_bytes]

    def put(self, numbers: Sequence[int], *, foreign: bool = False) -> None:
        """A chain of blocks, in the arena."""
        parent = b""
        for n in numbers:
            (slot,) = self.slab.arena.reserve(1, time.monotonic())
            self.slab.view(slot)[:] = self.bytes_of(n)
            tag = tag_of(key(n), self.slab.view(slot))
            self.slab.arena.commit(key(n), parent, slot, tag, foreign=foreign)
            parent = key(n)

    def use_again(self, numbers: Sequence[int]) -> None:
        keys = [key(n) for n in numbers]
        self.tier.used(self.slab, keys, keys)

    def keep(self, numbers: Sequence[int]) -> None:
        """Puts a chain and has it written."""
        self.put(numbers)
        self.use_again(numbers)
        wait_until(lambda: self.stored(numbers) == [True] * len(numbers), f"{numbers} were written")

    def stored(self, numbers: Sequence[int]) -> list[bool]:
        return self.source.held(self.slab, [key(n) for n in numbers])

    def load(self, numbers: Sequence[int], seconds: float = 10.0) -> str:
        keys = [key(n) for n in numbers]
        wanted = [Wanted(one, before) for one, before in zip(keys, [b"", *keys], strict=False)]
        return self.source.load(self.slab, wanted, time.monotonic() + seconds)

    def drop(self, numbers: Sequence[int]) -> None:
        for n in numbers:
            self.slab.arena.drop(key(n))

    def right(self, numbers: Sequence[int]) -> list[bool]:
        """For each block whether it is in the arena with its own bytes; wrong bytes fail."""
        lease, held = self.slab.arena.lease([key(n) for n in numbers], time.monotonic(), 10.0)
        for n, block in zip(numbers, held, strict=True):
            assert block is None or bytes(self.slab.view(block.slot)) == self.bytes_of(n)
        self.slab.arena.release(lease)
        return [block is not None for block in held]

    def files(self, pattern: str = "?" * 32) -> list[Path]:
        return sorted((self.path / FOLDER).glob(pattern))

    @property
    def counters(self) -> dict[str, int]:
        return self.account.counters

    def no_slot_is_lost(self) -> bool:
        return self.slab.arena.used_slots == len(self.slab.arena)
