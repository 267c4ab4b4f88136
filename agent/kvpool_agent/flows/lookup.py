"""The plan of one request: what of its chain lies, or can be brought, into the arena before the load deadline.

The longest run from the first block the engine lacks: first what is here, then what members hold. The engine is
answered when the bytes lie verified in the arena, or at the deadline with what has come by then.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from kvpool_agent.account import Account
from kvpool_agent.directory.locate import Locator
from kvpool_agent.flows.fetch import Fetcher, Wanted
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of

log = logging.getLogger("kvpool.lookup")

MAX_PLANS = 64
THREADS = 16
# from the plan's answer to the engine's load: a few of its steps, and a step may compute a long prompt
HOLD_SECONDS = 10.0


NO_LEASE = 0
# (end, lease): blocks [start, end) lie ready, kept by the lease
Answer = Callable[[int, int], None]


class LookupFlow:
    """Plans requests on threads of its own; above `MAX_PLANS` at a time a lookup is answered with a miss."""

    def __init__(
        self,
        locator: Locator,
        fetcher: Fetcher,
        account: Account,
        load_seconds: float,
        obstacle: Callable[[float], str] = lambda _deadline: "",
    ) -> None:
        """obstacle: given the deadline, why the engine may load nothing; empty when it may."""
        self._locator = locator
        self._fetcher = fetcher
        self._account = account
        self._obstacle = obstacle
        self.load_seconds = load_seconds
        self.paused = False
        self._places = threading.BoundedSemaphore(MAX_PLANS)
        self._pool = ThreadPoolExecutor(THREADS, "kvpool-plan")

    def submit(self, slab: Slab, chain: Sequence[bytes], start: int, answer: Answer) -> None:
        """Plans `chain[start:]` and answers."""
        if self.paused:
            self._account.miss("paused", len(chain) - start)
            answer(start, NO_LEASE)
            return
        if not self._places.acquire(blocking=False):
            self._account.miss("busy", len(chain) - start)
            answer(start, NO_LEASE)
            return
        deadline = time.monotonic() + self.load_seconds
        self._pool.submit(self._run, slab, chain, start, deadline, answer)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, slab: Slab, chain: Sequence[bytes], start: int, deadline: float, answer: Answer) -> None:
        ready, lease = 0, NO_LEASE
        try:
            ready, lease = self.plan(slab, chain, start, deadline)
        except Exception:
            log.exception("plan failed")
            self._account.miss("unknown", len(chain) - start)
        finally:
            self._places.release()
            answer(start + ready, lease)

    def plan(self, slab: Slab, chain: Sequence[bytes], start: int, deadline: float) -> tuple[int, int]:
        """How many blocks from `start` on lie ready in the arena, and the lease that keeps them there; counts the
        misses of the rest."""
        self._account.count("plans")
        obstacle = self._obstacle(deadline)
        if obstacle:
            self._account.miss(obstacle, len(chain) - start)
            return 0, NO_LEASE
        wanted = [Wanted(key, chain[i - 1] if i else b"") for i, key in enumerate(chain) if i >= start]
        keys = [w.key for w in wanted]
        reason = ""
        here = slab.arena.run(keys)
        kept, _ = slab.arena.lease(keys[:here], time.monotonic(), self.load_seconds + HOLD_SECONDS)
        try:
            if here < len(keys):
                reason = self._bring(slab, wanted[here:], deadline)
        finally:
            slab.arena.release(kept)
        ready, lease = self._verified_run(slab, keys)
        self._account.miss(reason or "evicted", len(keys) - ready)
        return ready, lease

    def _bring(self, slab: Slab, wanted: Sequence[Wanted], deadline: float) -> str:
        keys = [w.key for w in wanted]
        located = self._locator.locate(slab.fingerprint, keys, deadline)
        reason = located.reason
        for segment in located.segments:
            ended = self._fetcher.fetch(slab, segment.address, wanted[segment.start : segment.end], "demand", deadline)
            if ended:
                reason = ended
                break
        self._fetcher.in_flight.wait_for(keys[: located.end], deadline)
        return "deadline" if time.monotonic() >= deadline else reason

    def _verified_run(self, slab: Slab, keys: Sequence[bytes]) -> tuple[int, int]:
        """The run of blocks whose bytes match their tags now, and the lease that holds them until the engine's
        load."""
        run = slab.arena.run(keys)
        lease, held = slab.arena.lease(keys[:run], time.monotonic(), HOLD_SECONDS)
        for i, block in enumerate(held):
            if block is None:
                return i, lease
            if tag_of(block.key, slab.view(block.slot)) != block.tag:
                self._account.count("tag_failures")
                log.error("a block in the arena does not match its tag any more; it is dropped")
                slab.arena.drop(block.key)
                return i, lease
        return run, lease
