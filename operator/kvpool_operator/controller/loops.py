"""When a pool's next pass is due: soon after something was seen to change, and at the latest after a while.

One task a pool, so passes over it follow one another; a bound on passes at a time over all. A burst of changes becomes
one pass. A pass that fails is repeated with a growing pause, and no failure of one pool touches another.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from kvpool_operator.controller import metrics
from kvpool_operator.controller.cluster import Key

log = logging.getLogger("kvpool.controller")

QUIET_SECONDS = 0.5
PASS_SECONDS = 120.0
RESYNC_SECONDS = 60.0
PARALLEL = 64  # passes at a time: they wait for agents most of the time, and for the API server in few threads
JITTER = 0.1
MOST_DOUBLINGS = 10  # of the pause after a failure; the thousandth would be no number any more


class Loops:
    """To be made and used in one event loop. once: a pass, false when the pool is gone; keys: all pools there are."""

    def __init__(
        self, once: Callable[[Key], Awaitable[bool]], keys: Callable[[], Awaitable[list[Key]]], every: float
    ) -> None:
        """every: seconds between passes over a pool in which nothing was seen to change."""
        self._once, self._keys, self._every = once, keys, every
        self._due: dict[Key, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(PARALLEL)

    def wake(self, key: Key) -> None:
        """A pass over this pool is due soon."""
        if key not in self._due:
            self._due[key] = asyncio.Event()
            self._spawn(self._look_after(key))
            metrics.POOLS.set(len(self._due))
        self._due[key].set()

    def wake_all(self) -> None:
        """A pass over every pool is due soon."""
        for due in self._due.values():
            due.set()

    def start(self) -> None:
        self._spawn(self._resync())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_after(self, key: Key) -> None:
        due, failures, there = self._due[key], 0, True
        while there or due.is_set():
            due.clear()
            try:
                async with self._places, asyncio.timeout(PASS_SECONDS):
                    there = await self._once(key)
            except Exception as error:  # noqa: BLE001 (whatever it was, the next pass begins anew)
                failures += 1
                metrics.PASSES.labels("failed").inc()
                log.warning("%s/%s: the pass failed: %s", *key, " ".join(str(error).split()) or repr(error))
            else:
                failures = 0
                metrics.PASSES.labels("ok").inc()
            await asyncio.sleep(QUIET_SECONDS)
            pause = min(self._every, 2.0 ** min(failures, MOST_DOUBLINGS)) if failures else self._every
            if there:
                await _wait(due, pause * random.uniform(1 - JITTER, 1 + JITTER))
        del self._due[key]
        metrics.POOLS.set(len(self._due))

    async def _resync(self) -> None:
        """Finds pools that no watch has told of."""
        while True:
            try:
                for key in await self._keys():
                    if key not in self._due:
                        self.wake(key)
            except Exception as error:  # noqa: BLE001 (tried again; watches and passes go on meanwhile)
                log.warning("the pools can't be listed: %s", " ".join(str(error).split()) or repr(error))
            await asyncio.sleep(RESYNC_SECONDS)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
