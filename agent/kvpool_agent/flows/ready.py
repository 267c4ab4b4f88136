"""Turning ready: the agent's state behind one lock, changed from several threads, and told once when it is ready."""

import logging
import threading
import time
from collections.abc import Callable

from kvpool_agent.account import Account
from kvpool_agent.policy.readiness import Readiness

log = logging.getLogger("kvpool.agent")


class ReadyFlow:
    """Any thread may call."""

    def __init__(self, readiness: Readiness, account: Account) -> None:
        self._readiness, self._account = readiness, account
        self._lock = threading.Lock()

    def change(self, change: Callable[[Readiness], None]) -> None:
        with self._lock:
            before = self._readiness.ready
            change(self._readiness)
            became_ready = self._readiness.ready and not before
        if became_ready:
            log.info("ready: %s %s", self._readiness.state, self._readiness.reason)
            self._account.event("ready", state=self._readiness.state, reason=self._readiness.reason)

    def tick(self, block_at: float) -> None:
        """As Readiness.tick, now."""
        self.change(lambda readiness: readiness.tick(time.monotonic(), block_at))

    @property
    def state(self) -> str:
        return self._readiness.state

    @property
    def reason(self) -> str:
        return self._readiness.reason

    @property
    def ready(self) -> bool:
        return self._readiness.ready

    @property
    def added_seconds(self) -> float:
        return self._readiness.added_seconds

    def lasting(self) -> tuple[bool, str, str]:
        """Whether it is ready, and state and reason for the next worker, all of one moment."""
        with self._lock:
            return (self._readiness.ready, *self._readiness.lasting)
