"""What loading and computing have cost here, as measured: the policies' sketches behind one lock. Any thread may call.

Nothing is waited for under the lock, and a call costs some microseconds for each request or transfer, nothing for each
block.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvpool_agent.policy.path import LATE, USUAL, BySize, Path
from kvpool_agent.policy.recompute import Recompute
from kvpool_agent.policy.sketch import Sketch
from kvpool_contract import status as contract

DISK, ARENA = "disk", "arena"  # ways beside members' addresses
MAX_PATHS = 256
LONGEST_SECONDS = 3600.0  # what a client says beyond it is no measurement
MAX_TOKENS = 1 << 31


@dataclass(frozen=True)
class Timing:
    """What the engine's side measured of one request, in seconds and tokens. `first`: from its arrival to its first
    token; `prefill`: from its first step to that; `held`: tokens in the cache at its first step, of `tokens`; `waited`:
    for its plan; `install`: from the plan to its first step, and what of `waited` was not the agent's."""

    first: float
    prefill: float
    held: int
    tokens: int
    waited: float = 0.0
    install: float = 0.0


def timing_of(told: Any) -> Timing | None:
    """What a frame says; None where it says nothing, or nonsense."""
    if not isinstance(told, dict):
        return None
    try:
        found = Timing(
            float(told["first"]), float(told["prefill"]), int(told["held"]), int(told["tokens"]),
            float(told.get("waited", 0.0)), float(told.get("install", 0.0)),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    seconds = (found.first, found.prefill, found.waited, found.install)
    sane = all(0 <= one <= LONGEST_SECONDS for one in seconds) and 0 <= found.held <= found.tokens <= MAX_TOKENS
    return found if sane else None


class Costs:
    """Costs since the worker's start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._recompute = Recompute()
        self._lookup = Sketch()
        self._install = BySize()
        self._paths: dict[str, Path] = {}

    # -- measured ------------------------------------------------------------------------------------

    def looked_up(self, seconds: float) -> None:
        """Who holds the blocks of a request took so long to find out."""
        with self._lock:
            self._lookup.add(seconds, self._clock())

    def moved(self, path: str, queue: float, size: int, seconds: float) -> None:
        """A transfer for a request: `size` bytes in `seconds` from the first of them, which was waited for so long."""
        with self._lock:
            known = self._paths.pop(path, None) or Path()
            self._paths[path] = known
            while len(self._paths) > MAX_PATHS:
                self._paths.pop(next(iter(self._paths)))  # the one that has been idle the longest
            known.measured(queue, size, seconds, self._clock())

    def served(self, timing: Timing, loaded_bytes: int) -> None:
        """A request has had its first token; it took so many bytes from here."""
        now = self._clock()
        with self._lock:
            self._recompute.measured(timing.held, timing.tokens, timing.prefill, now)
            if loaded_bytes:
                self._install.add(loaded_bytes, timing.install, now)

    def forget(self, path: str) -> None:
        """Whoever was at this address is there no more."""
        with self._lock:
            self._paths.pop(path, None)

    # -- estimated -----------------------------------------------------------------------------------

    def recompute(self, start: int, end: int) -> float | None:
        """Median seconds of computing tokens [start, end) of a prompt; None while too little is known."""
        with self._lock:
            return self._recompute.seconds(start, end)

    def install(self, size: int) -> float:
        """95th percentile of what lies between so many bytes in the arena and the request's first step."""
        with self._lock:
            return self._install.seconds(size, LATE) or 0.0

    def remote(self, path: str, size: int) -> float | None:
        """95th percentile of wait and transfer of so many bytes; None where it was never tried."""
        with self._lock:
            return self._paths[path].seconds(size) if path in self._paths else None

    def interference(self) -> float:
        """Seconds that requests beside a load lose for each second of it."""
        return 0.0

    def lookup(self) -> float:
        with self._lock:
            return self._lookup.quantile(LATE) or 0.0

    def snapshot(self) -> contract.Costs:
        with self._lock:
            start, linear, pairs = self._recompute.fit
            largest = self._install.largest()
            return contract.Costs(
                recompute=contract.Recompute(
                    start, linear, pairs, self._recompute.count, self._recompute.longest,
                    self._recompute.ratios.quantile(USUAL) or 0.0, self._recompute.ratios.quantile(LATE) or 0.0,
                ),
                lookup=_quantiles(self._lookup),
                install=_quantiles(largest) if largest is not None else contract.Quantiles(),
                paths={
                    name: contract.Path(_quantiles(path.queue), _quantiles(path.rate), path.moved)
                    for name, path in self._paths.items()
                },
            )  # fmt: skip


def _quantiles(sketch: Sketch) -> contract.Quantiles:
    low, middle, high = (sketch.quantile(part) or 0.0 for part in (1 - LATE, USUAL, LATE))
    return contract.Quantiles(low, middle, high, sketch.count)
