"""Whether blocks are loaded or computed: the one rule, in seconds that were measured.

A load is admitted where its 95th percentile and what it costs the requests beside it, times a margin, is below the
median of computing the same tokens. Of several boundaries that could be reached (with every source, without the slowest
one, ...) the one that saves most is chosen, in whole blocks. What was never measured is tried: nothing else would ever
measure it. What is refused is tried again from time to time (policy.tries), for the same reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

MEASURED: Final = "Measured"
ALWAYS: Final = "Always"
NEVER: Final = "Never"
LEAST_PATIENCE_SECONDS = 0.05  # a soft deadline is no shorter, however little there is to compute


@dataclass(frozen=True)
class Offer:
    """What a load up to a boundary costs and saves. `parts`: by path, the 95th percentile of what it takes there, in
    seconds; None where it was never measured. `install`: likewise, from the arena to the request's first step.
    `interference`: seconds that requests beside it lose for each second of it. `recompute`: median seconds of computing
    the same tokens, None while nobody knows."""

    boundary: int
    parts: Mapping[str, float | None]
    install: float
    recompute: float | None
    interference: float = 0.0

    @property
    def transfer(self) -> float | None:
        """Seconds until all bytes lie here; sources are asked one after another."""
        known = [part for part in self.parts.values() if part is not None]
        return sum(known) if len(known) == len(self.parts) else None

    def gain(self, margin: float) -> float | None:
        """Seconds that it saves beyond the margin; None where that can't be known."""
        transfer = self.transfer
        if transfer is None or self.recompute is None:
            return None
        return self.recompute - margin * (transfer + self.install) * (1 + self.interference)

    def held_up_by_install(self, margin: float) -> bool:
        """Whether it would pay but for what comes after the transfer, which real loads alone can measure anew."""
        transfer = self.transfer
        if transfer is None or self.recompute is None:
            return False
        return self.recompute > margin * transfer * (1 + self.interference)

    def pays_where(self, path: str, part: float, margin: float) -> bool:
        """Whether it would pay if this path took so large a part of what it is said to take."""
        seconds = self.parts.get(path)
        if seconds is None:
            return False
        gain = replace(self, parts={**self.parts, path: part * seconds}).gain(margin)
        return gain is not None and gain > 0

    @property
    def slowest(self) -> str:
        """The path that takes longest; empty where there is none, or one was never measured."""
        known = {path: part for path, part in self.parts.items() if part is not None}
        return max(known, key=known.__getitem__) if known and len(known) == len(self.parts) else ""


def chosen(offers: Sequence[Offer], margin: float) -> Offer | None:
    """The offer that saves most; where none before it pays, one of which that can't be known; None where none pays."""
    best, most = None, 0.0
    for offer in offers:
        gain = offer.gain(margin)
        if gain is None:
            return best or offer
        if gain > most:
            best, most = offer, gain
    return best


def asking_pays(lookup: float, recompute: float | None, margin: float) -> bool:
    """Whether it is worth while to ask who holds a prompt's blocks: not where asking alone takes longer than computing
    all of it."""
    return recompute is None or margin * lookup < recompute


def patience(recompute: float | None) -> float | None:
    """Seconds after which a load that was admitted is late: then it has cost as much as computing would have. None: no
    such bound."""
    return None if recompute is None else max(recompute, LEAST_PATIENCE_SECONDS)
