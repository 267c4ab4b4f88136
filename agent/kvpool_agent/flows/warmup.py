"""The warm-up of a newcomer: the pool's hot set, fetched within bounds before the pod takes traffic; after a restart
of the worker, what of it was not recovered.

Sources are the live members of the same format that hold blocks; where none has a hot set, the external store, if it
has a hot list. Nobody: the warm-up ends at once and is never called warm. Batches go out in the order of heat, over a
bounded number of streams; the bounds of the purpose hold for each of its fetches. What the configuration says may
change on the way; while the pool is paused no batch is begun, and the deadline stands still.
"""

import logging
import math
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from kvpool_agent.account import Account
from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.directory.members import MemberView
from kvpool_agent.flows.fetch import Fetcher, Wanted
from kvpool_agent.peer.connection import PeerError
from kvpool_agent.peer.dial import Dialer
from kvpool_agent.policy.readiness import limits
from kvpool_agent.policy.warmup import WarmBlock, plan_warmup, share_out
from kvpool_agent.store.slab import Slab
from kvpool_contract.config import AgentConfig
from kvpool_contract.external import STORE
from kvpool_contract.status import Warm

log = logging.getLogger("kvpool.warmup")

SETTLE_SECONDS = 3.0
LIST_SECONDS = 3.0
BATCH_BLOCKS = 4
BUSY_SECONDS = 0.2
LOOK_SECONDS = 0.05
MAX_LIST = 65_536


class WarmProgress:
    """What the warm-up has done so far; read by status, written by its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planned = self._loaded = self._bytes = self._peak = 0
        self._window: list[tuple[float, int]] = []
        self._started = self._ended = 0.0

    def begin(self, planned: int, now: float) -> None:
        with self._lock:
            self._planned, self._started, self._ended = planned, now, now

    def arrived(self, size: int, now: float) -> None:
        with self._lock:
            self._loaded += 1
            self._bytes += size
            self._ended = now
            self._window = [(t, s) for t, s in self._window if t > now - 1.0]
            self._window.append((now, size))
            self._peak = max(self._peak, sum(s for _, s in self._window))

    def at_least(self, loaded: int) -> None:
        """So many blocks are in, some of them brought by others."""
        with self._lock:
            self._loaded = max(self._loaded, loaded)

    @property
    def loaded(self) -> int:
        return self._loaded

    @property
    def block_at(self) -> float:
        """When the last block came, on the monotonic clock; before the first, when the warm-up began, 0 before that."""
        return self._ended

    @property
    def planned(self) -> int:
        return self._planned

    def snapshot(self, added_seconds: float) -> Warm:
        with self._lock:
            seconds = self._ended - self._started
            rate = self._bytes / seconds if seconds > 0 else 0.0
            return Warm(self._planned, self._loaded, self._bytes, seconds, rate, float(self._peak), added_seconds)


class _Deadline:
    """When a warm-up is over: `deadlineSeconds` after `since`, which it may not have yet, or, where the pool blocks,
    after the last block."""

    def __init__(
        self, config: Callable[[], AgentConfig], since: Callable[[], float | None], progress: WarmProgress
    ) -> None:
        self._config = config
        self._since = since
        self._progress = progress
        self._stood_still = 0.0

    @property
    def at(self) -> float:
        since = self._since()
        if since is None or math.isinf(since):
            return math.inf if since is None else since
        return limits(self._config().readiness).deadline(since, self._progress.block_at) + self._stood_still

    @property
    def of_a_fetch(self) -> float:
        """That of a fetch which begins now; its own blocks may put the warm-up's off."""
        readiness = self._config().readiness
        own = time.monotonic() + readiness.deadlineSeconds
        return own if readiness.onDeadline == "Block" else min(self.at, own)

    def stand_still(self, wait: Callable[[], object]) -> None:
        began = time.monotonic()
        wait()
        self._stood_still += time.monotonic() - began


class _Fetching:
    """The blocks of one warm-up on their way: batches in the order of the plan, taken by several streams.

    What a holder could not give is asked of another one that has it, once each.
    """

    def __init__(self, slab: Slab, plan: Sequence[WarmBlock], fetcher: Fetcher, clock: "_Deadline") -> None:
        self._slab, self._plan, self._fetcher, self._clock = slab, plan, fetcher, clock
        self._running: set[threading.Thread] = set()
        self._changed = threading.Condition()
        self._batches: queue.SimpleQueue[tuple[str, list[WarmBlock]]] = queue.SimpleQueue()
        self._queue(plan)

    @property
    def late(self) -> bool:
        return time.monotonic() >= self._clock.at

    def held(self) -> int:
        """Blocks of the plan that are in the arena, whoever brought them."""
        return sum(self._slab.arena.held([block.key for block in self._plan]))

    def run(self, config: Callable[[], AgentConfig], arrived: Callable[[int], None]) -> None:
        with self._changed:
            while self._running or not (self._batches.empty() or self.late):
                while config().paused and not self._running:
                    self._clock.stand_still(lambda: self._changed.wait(LOOK_SECONDS))
                while len(self._running) < self._streams(config()) and not (self._batches.empty() or self.late):
                    thread = threading.Thread(target=self._stream, args=(arrived,), name="kvpool-warm", daemon=True)
                    self._running.add(thread)
                    thread.start()
                if self._running:
                    self._changed.wait()
        # requests may have been bringing some of them in at the same time
        self._fetcher.in_flight.wait_for([block.key for block in self._plan], self._clock.of_a_fetch)

    @staticmethod
    def _streams(config: AgentConfig) -> int:
        return 0 if config.paused else config.prewarm.maxStreams

    def _queue(self, blocks: Sequence[WarmBlock]) -> None:
        held = self._slab.arena.held([block.key for block in blocks])
        missing = [block for block, here in zip(blocks, held, strict=True) if not here and block.holders]
        for batch in share_out(missing, BATCH_BLOCKS, random.Random()):
            self._batches.put(batch)

    def _stream(self, arrived: Callable[[int], None]) -> None:
        """One batch; who waits for it starts the next one."""
        try:
            address, blocks = self._batches.get_nowait()
            if self._fetch(address, blocks, arrived):
                others = [replace(block, holders=tuple(h for h in block.holders if h != address)) for block in blocks]
                self._queue(others)
        except queue.Empty:
            pass
        except Exception:
            log.exception("a batch of the warm-up failed")
        finally:
            with self._changed:
                self._running.discard(threading.current_thread())
                self._changed.notify_all()

    def _fetch(self, address: str, blocks: Sequence[WarmBlock], arrived: Callable[[int], None]) -> str:
        """Why not all of the blocks came, empty when they did."""
        wanted = [Wanted(block.key, block.parent) for block in blocks]
        reason = "busy"
        # a source serves so many streams at a time and a cohort of newcomers may ask for more
        while reason == "busy" and not self.late:
            deadline = self._clock.of_a_fetch
            reason = self._fetcher.fetch(self._slab, address, wanted, "prewarm", deadline, arrived)
            if reason == "busy":
                time.sleep(BUSY_SECONDS)
        return reason


class WarmupFlow:
    """Runs on a thread of its own, one at a time."""

    def __init__(
        self,
        config: Callable[[], AgentConfig],
        members: MemberView,
        dialer: Dialer,
        fetcher: Fetcher,
        breakers: Breakers,
        account: Account,
        others: Callable[[], Sequence[Slab]] = lambda: (),
    ) -> None:
        """config: as it holds now. others: the slabs of further cache namespaces, warmed after the default one."""
        self._config = config
        self._others = others
        self._members = members
        self._dialer = dialer
        self._fetcher = fetcher
        self._breakers = breakers
        self._account = account
        self.progress = WarmProgress()

    def start(self, slab: Slab, ended: Callable[[str], None], since: Callable[[], float | None]) -> None:
        """`ended(reason)` is called once: empty when the target is reached, else what kept the warm-up from it.
        since: the moment on the monotonic clock from which its deadline counts, None while there is none."""
        clock = _Deadline(self._config, since, self.progress)

        def run() -> None:
            try:
                while self._config().paused:
                    clock.stand_still(lambda: time.sleep(LOOK_SECONDS))
                reason = self._warm(slab, ended, clock)
            except Exception:
                log.exception("warm-up failed")
                reason = "warm_incomplete"
            if reason is not None:
                ended(reason)

        try:
            threading.Thread(target=run, name="kvpool-warmup", daemon=True).start()
        except RuntimeError as error:  # the container has no thread left
            log.error("warm-up: %s", error)
            ended("warm_incomplete")

    def _warm(self, slab: Slab, ended: Callable[[str], None], clock: _Deadline) -> str | None:
        """The reason to end with, or None when `ended` was called on the way."""
        slabs = [slab, *(other for other in self._others() if other.space.open)]
        slots = sum(one.arena.slot_count for one in slabs)
        plans = [(one, plan) for one in slabs if (plan := self._plan(one, one.arena.slot_count / slots))]
        if not plans:
            return "nothing_to_warm"
        self._until_writable(slab, clock.of_a_fetch)
        now, planned = time.monotonic(), sum(len(plan) for _, plan in plans)
        self.progress.begin(planned, now)
        self._account.event("warm_begin", blocks=planned, bytes=planned * slab.slot_bytes)
        fetchings = [_Fetching(one, plan, self._fetcher, clock) for one, plan in plans]
        told = threading.Event()

        def target() -> int:
            return -(-planned * self._config().readiness.targetPercent // 100)

        def held() -> int:
            return sum(fetching.held() for fetching in fetchings)

        def arrived(size: int) -> None:
            self.progress.arrived(size, time.monotonic())
            if self.progress.loaded >= target() and not told.is_set():
                told.set()
                self._account.event("warm_end", blocks=self.progress.loaded)
                ended("")

        for _ in range(held()):
            arrived(0)
        for fetching in fetchings:
            fetching.run(self._config, arrived)
        self.progress.at_least(held())
        if told.is_set():
            return None
        if self.progress.loaded >= target():
            self._account.event("warm_end", blocks=self.progress.loaded)
            return ""
        return "warm_deadline" if fetchings[-1].late else "warm_incomplete"

    @staticmethod
    def _until_writable(slab: Slab, until: float) -> None:
        """After a restart: what is missing is known when the arena is recovered, and can be written then."""
        while not slab.arena.writable(now := time.monotonic()) and now < until:
            time.sleep(LOOK_SECONDS)

    def _plan(self, slab: Slab, share: float) -> list[WarmBlock]:
        """share: of the bytes that may be fetched."""
        self._members.settle(SETTLE_SECONDS)
        lists = {}
        for member in self._members.live(slab.fingerprint):
            # what a member tells of itself is of the default cache namespace
            holds = member.welcome is not None and (member.welcome.blocks or slab.number)
            if holds and self._breakers.usable(member.address):
                try:
                    lists[member.address] = self._dialer.hot(member.address, slab.id, MAX_LIST, LIST_SECONDS)
                    self._breakers.answered(member.address)
                except PeerError as error:
                    self._breakers.silent(member.address)
                    log.info("no hot list from %s: %s", member.address, error)
        if not any(lists.values()):  # nobody is there, or nobody has anything: what the pool has left for this
            lists = {STORE: self._fetcher.external.hot(slab, LIST_SECONDS)}
        budget = min(int(self._config().prewarm.maxBytes * share) // slab.slot_bytes, slab.arena.slot_count)
        return plan_warmup(lists, budget, random.Random())
