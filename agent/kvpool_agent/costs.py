"""What loading and computing have cost here, as measured: the policies' sketches behind one lock. Any thread may call.

Nothing is waited for under the lock, and a call costs some microseconds for each request or transfer, nothing for each
block.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvpool_agent.policy.benefit import REMOTE, TERMS, Benefit, Outcomes, balance, kind_of
from kvpool_agent.policy.interference import LOAD, QUIET, STORE, Interference
from kvpool_agent.policy.path import LATE, USUAL, BySize, Path
from kvpool_agent.policy.recompute import Recompute
from kvpool_agent.policy.sketch import Sketch
from kvpool_contract import status as contract

DISK = "disk"  # a path beside members' addresses
MAX_PATHS = 256
LONGEST_SECONDS = 3600.0  # what a client says beyond it is no measurement
MAX_TOKENS = 1 << 31
MAX_STEPS = 96
MAX_NAMESPACES = 64


@dataclass(frozen=True)
class Timing:
    """What the engine's side measured of one request, in seconds and tokens. `first`: from its arrival to its first
    token; `prefill`: from its first step to that; `held`: tokens in the cache at its first step, of `tokens`; `waited`:
    for its plan; `install`: from the plan to its first step, and what of `waited` was not the agent's; `tried`: its
    plan was to bring blocks. `steps`: since the last request that was told, steps in which the engine only decoded:
    size, what kvpool did beside, their number and seconds (kvpool_client.timing)."""

    first: float
    prefill: float
    held: int
    tokens: int
    waited: float = 0.0
    install: float = 0.0
    tried: bool = False
    steps: tuple[tuple[int, str, int, float], ...] = ()


def timing_of(told: Any) -> Timing | None:
    """What a frame says; None where it says nothing, or nonsense."""
    if not isinstance(told, dict):
        return None
    try:
        found = Timing(
            float(told["first"]), float(told["prefill"]), int(told["held"]), int(told["tokens"]),
            float(told.get("waited", 0.0)), float(told.get("install", 0.0)), bool(told.get("tried")),
            tuple((int(a), str(b), int(c), float(d)) for a, b, c, d in told.get("steps", ())[:MAX_STEPS]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    seconds = (found.first, found.prefill, found.waited, found.install)
    sane = all(0 <= one <= LONGEST_SECONDS for one in seconds) and 0 <= found.held <= found.tokens <= MAX_TOKENS
    sane = sane and all(
        0 <= size < 32 and beside in (LOAD, STORE, QUIET) and 0 < n <= MAX_TOKENS and 0 <= s <= n * LONGEST_SECONDS
        for size, beside, n, s in found.steps
    )
    return found if sane else None


@dataclass(frozen=True)
class Shares:
    """What of a request's tokens was loaded, from token to token, whether another replica computed some of that, and
    the tokens that it computed again for a copy's sake; its cache namespace."""

    start: int = 0
    end: int = 0
    size: int = 0
    shared: bool = False
    again: int = 0
    namespace: str = ""


class Costs:
    """Costs since the worker's start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._recompute = Recompute()
        self._lookup = Sketch()
        self._install = BySize()
        self._paths: dict[str, Path] = {}
        self._interference = Interference()
        self._benefit = Benefit()
        self._outcomes: dict[str, Outcomes] = {}

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

    def served(self, timing: Timing, shares: Shares = Shares()) -> None:
        """A request has had its first token."""
        now = self._clock()
        with self._lock:
            self._recompute.measured(timing.held, timing.tokens, timing.prefill, now)
            if shares.size:
                self._install.add(shares.size, timing.install, now)
            self._weigh(timing, shares, now)

    def calibrated(self, tokens: int, seconds: float) -> None:
        """The engine has computed a prompt of so many tokens that nobody asked for, in so long."""
        with self._lock:
            self._recompute.measured(0, tokens, seconds, self._clock())

    def _weigh(self, timing: Timing, shares: Shares, now: float) -> None:
        loaded = shares.end - shares.start
        kind = kind_of(held=timing.held, loaded=loaded, shared=shares.shared, tried=timing.tried)
        if len(self._outcomes) < MAX_NAMESPACES or shares.namespace in self._outcomes:
            self._outcomes.setdefault(shares.namespace, Outcomes()).add(kind, timing.first, now)
        if kind == REMOTE:
            self._benefit.loads += 1
            self._benefit.add("saved", self._recompute.seconds(shares.start, shares.end) or 0.0, now)
            self._benefit.add("loading", timing.waited + timing.install, now)
        elif not loaded:
            self._benefit.add("waited", timing.waited, now)
        if shares.again:
            lost = self._recompute.seconds(timing.tokens - shares.again, timing.tokens)
            self._benefit.add("displaced", lost or 0.0, now)
        for size, beside, steps, seconds in timing.steps:
            lost = self._interference.add(size, beside, steps, seconds, now)
            if term := {LOAD: "stalled", STORE: "written"}.get(beside):
                self._benefit.add(term, lost, now)

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
        with self._lock:
            return self._interference.part(LOAD, self._clock())

    def lookup(self) -> float:
        with self._lock:
            return self._lookup.quantile(LATE) or 0.0

    def benefit(self) -> contract.Benefit:
        now = self._clock()
        with self._lock:
            terms = self._benefit.terms(now)
            waiting, gpu = balance(terms)
            parts = (self._interference.part(beside, now) for beside in (LOAD, STORE))
            return contract.Benefit(waiting, gpu, self._benefit.loads, *(terms[term] for term in TERMS), *parts)

    def outcomes(self) -> dict[str, dict[str, contract.Quantiles]]:
        """By cache namespace and by what a request was: seconds to its first token."""
        with self._lock:
            return {
                name: {kind: _quantiles(sketch) for kind, sketch in outcomes.kinds.items()}
                for name, outcomes in self._outcomes.items()
            }

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
