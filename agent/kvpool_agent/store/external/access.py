"""The store as this agent reaches it: one word for how it is, and no call while it is known not to answer.

A call that failed for the store's sake ends it at once: nobody else waits for what one has waited for in vain. From
then on it is asked whether it answers, after a pause that doubles up to half a minute; when it does, it is used again.
So what is gone costs the requests that were under way their wait, once, and no other one anything.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from kvpool_agent.account import Account
from kvpool_agent.store.external.calls import Calls
from kvpool_agent.store.external.objects import BUSY, ERROR, FULL, SLOW, UNREACHABLE, Objects, StoreError

log = logging.getLogger("kvpool.external")

READ_THREADS, WRITE_THREADS = 8, 2
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
PING_SECONDS = 2.0
IDLE_SECONDS = 5.0  # after which one that nobody uses is asked how it is
FULL_SECONDS = 60.0
OPENING, READY, DEGRADED = "opening", "ready", "degraded"

T = TypeVar("T")


class Access:
    """Any thread may call; one calls `look`. Counts each fault by its word."""

    def __init__(self, objects: Objects, account: Account) -> None:
        self._objects, self._account = objects, account
        self._reads, self._writes = Calls("read", READ_THREADS), Calls("write", WRITE_THREADS)
        self._lock = threading.Lock()
        self._known = threading.Condition(self._lock)
        self._state, self._reason, self._detail = OPENING, "", ""
        self._pause, self._look_at, self._full_until = FIRST_PAUSE_SECONDS, 0.0, 0.0
        self._cut = 0  # how often all connections were ended

    @property
    def ready(self) -> bool:
        return self._state == READY

    @property
    def full(self) -> bool:
        """Whether it has refused a block for want of room, a short time ago."""
        return time.monotonic() < self._full_until

    def told(self) -> tuple[str, str, str]:
        """State, reason, and what was seen."""
        with self._lock:
            return self._state, self._reason or (FULL if self.full else ""), self._detail

    def begin(self, work: Callable[[Objects], T], *, writes: bool = False) -> Future[T]:
        """Raises StoreError where it is not ready, or busy."""
        if not self.ready:
            raise StoreError(self._reason or UNREACHABLE, "it is left alone for now")
        return (self._writes if writes else self._reads).begin(lambda: self._run(work))

    def wait(self, future: Future[T], until: float) -> T:
        """until: on the monotonic clock. Raises StoreError."""
        return Calls.wait(future, until)

    def call(self, work: Callable[[Objects], T], until: float, *, writes: bool = False) -> T:
        return self.wait(self.begin(work, writes=writes), until)

    def settle(self, until: float) -> None:
        """Waits until it is known how the store is, or until a time on the monotonic clock."""
        with self._known:
            self._known.wait_for(lambda: self._state != OPENING, max(0.0, until - time.monotonic()))

    def look(self) -> None:
        """Asks how it is, when it is time to."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + IDLE_SECONDS
        try:
            self._reads.wait(self._reads.begin(lambda: self._run(lambda objects: objects.ping())), now + PING_SECONDS)
        except StoreError as error:
            if error.word == SLOW:  # nothing has come back at all
                self.failed(error)
            return
        with self._lock:
            before, self._state, self._reason, self._detail = self._state, READY, "", ""
            self._pause = FIRST_PAUSE_SECONDS
            self._known.notify_all()
        if before != READY:
            self._account.event("store_ready")

    def failed(self, error: StoreError) -> None:
        """The store has failed somebody."""
        if error.word == BUSY:
            return
        self._account.count(error.word)
        with self._lock:
            now = time.monotonic()
            if error.word == FULL:
                self._full_until = now + FULL_SECONDS
                return
            if told := self._state == DEGRADED:
                self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
            self._state, self._reason, self._detail = DEGRADED, error.word, error.detail
            self._look_at = now + self._pause
            self._cut += 1
            self._known.notify_all()
        self._objects.disconnect()
        if not told:
            log.warning("the external store is left alone: %s", error)
            self._account.event("store_degraded", reason=error.word, detail=error.detail)

    def _run(self, work: Callable[[Objects], T]) -> T:
        cut = self._cut
        try:
            return work(self._objects)
        except Exception as error:
            if self._cut != cut:  # its connection was ended under it, and what a client makes of that says nothing
                raise StoreError(self._reason or UNREACHABLE, "another call on it had failed") from None
            if isinstance(error, StoreError):
                failed = error
            else:
                log.exception("a call on the external store failed")
                failed = StoreError(ERROR, type(error).__name__)
            self.failed(failed)
            raise failed from None
