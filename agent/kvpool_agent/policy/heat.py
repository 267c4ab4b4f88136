"""Heat: how many requests contained a block, each counting less as it ages (half-life one hour).

Every request counts all its blocks, also those that the engine's own caches served, so a parent is never colder
than its child and the hottest n blocks are closed under prefixes. Decay is folded into the increment: all values are
kept as of one epoch, so nothing has to be swept.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

HALF_LIFE_SECONDS = 3600.0
_REBASE_AFTER = 100 * HALF_LIFE_SECONDS  # before 2**x leaves the range of a float


@dataclass(frozen=True)
class HotBlock:
    """A block's key, its parent's key (empty: it begins a prompt), its place in the chain from 0, its heat now."""

    key: bytes
    parent: bytes
    depth: int
    heat: float


class HeatTable:
    """Bounded: above `limit` blocks the coldest tenth is forgotten. Times in seconds of one clock."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._epoch = 0.0
        self._entries: dict[bytes, tuple[float, bytes, int]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def count(self, chain: Sequence[bytes], now: float, *, linked: bool = True) -> None:
        """One request contained these blocks, in this order from the beginning of its prompt. linked: whether a block
        is worth nothing without those before it, and so has a parent."""
        weight = self._weight(now)
        parent = b""
        for depth, key in enumerate(chain):
            heat = self._entries[key][0] if key in self._entries else 0.0
            self._entries[key] = (heat + weight, parent, depth)
            parent = key if linked else b""
        self._cut()

    def inherit(self, blocks: Iterable[HotBlock], now: float) -> None:
        """What another member has counted, which counts no more itself."""
        weight = self._weight(now)
        for block in blocks:
            heat = self._entries[block.key][0] if block.key in self._entries else 0.0
            self._entries[block.key] = (heat + block.heat * weight, block.parent, block.depth)
        self._cut()

    def of(self, key: bytes, now: float) -> float:
        """A block's heat now; 0 where it was never counted."""
        entry = self._entries.get(key)
        return entry[0] * 2.0 ** (-(now - self._epoch) / HALF_LIFE_SECONDS) if entry is not None else 0.0

    def _weight(self, now: float) -> float:
        """What one request of now counts, as of the epoch."""
        if not self._entries:
            self._epoch = now
        if now - self._epoch > _REBASE_AFTER:
            self._rebase(now)
        weight: float = 2.0 ** ((now - self._epoch) / HALF_LIFE_SECONDS)
        return weight

    def _cut(self) -> None:
        if len(self._entries) > self._limit:
            keep = sorted(self._entries.items(), key=lambda item: (-item[1][0], item[1][2]))
            self._entries = dict(keep[: self._limit - self._limit // 10])

    def repeated(self, keys: Sequence[bytes], now: float) -> list[bytes]:
        """Those that at least two requests have contained, in their order; one that was counted once is no hotter than
        1 ever after."""
        scale = 2.0 ** (-(now - self._epoch) / HALF_LIFE_SECONDS)
        return [key for key in keys if key in self._entries and self._entries[key][0] * scale > 1 + 1e-9]

    def hottest(self, held: Iterable[bytes], now: float, limit: int) -> list[HotBlock]:
        """The hottest of the blocks in `held`, hottest first and parents before children; blocks never counted
        are left out."""
        scale = 2.0 ** (-(now - self._epoch) / HALF_LIFE_SECONDS)
        found = [
            HotBlock(key, parent, depth, heat * scale)
            for key in held
            if (entry := self._entries.get(key)) is not None
            for heat, parent, depth in (entry,)
        ]
        found.sort(key=lambda block: (-block.heat, block.depth, block.key))
        return found[:limit]

    def _rebase(self, now: float) -> None:
        scale = 2.0 ** (-(now - self._epoch) / HALF_LIFE_SECONDS)
        self._entries = {k: (heat * scale, p, d) for k, (heat, p, d) in self._entries.items() if heat * scale > 1e-9}
        self._epoch = now
