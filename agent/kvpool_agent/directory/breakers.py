"""The breakers of all peers, by address, for as long as the same incarnation of one member is there.

What is known about a peer belongs to that process: whoever comes to its address after it starts with a clean slate.
"""

import logging
import threading
import time
from collections.abc import Callable

from kvpool_agent.account import Account
from kvpool_agent.policy.breaker import CLOSED, Breaker

log = logging.getLogger("kvpool.breakers")


class Breakers:
    """Any thread may call. Counts `breaker_opened`."""

    def __init__(self, account: Account, clock: Callable[[], float] = time.monotonic) -> None:
        self._account = account
        self._clock = clock
        self._lock = threading.Lock()
        self._breakers: dict[str, Breaker] = {}

    def usable(self, address: str) -> bool:
        with self._lock:
            breaker = self._breakers.get(address)
            return breaker is None or breaker.usable(self._clock())

    def begin(self, address: str) -> bool:
        with self._lock:
            breaker = self._breakers.get(address)
            return breaker is None or breaker.begin(self._clock())

    def view(self, address: str) -> tuple[str, int]:
        """(state, failures in a row) of a peer."""
        with self._lock:
            breaker = self._breakers.get(address)
            return (breaker.state(self._clock()), breaker.failures) if breaker is not None else (CLOSED, 0)

    def answered(self, address: str) -> None:
        self._tell(address, lambda breaker, now: breaker.answered(now))

    def silent(self, address: str) -> None:
        self._tell(address, lambda breaker, now: breaker.silent(now))

    def put_off(self, address: str) -> None:
        self._tell(address, lambda breaker, _: breaker.put_off())

    def failed(self, address: str) -> None:
        self._tell(address, lambda breaker, now: breaker.failed(now))

    def succeeded(self, address: str, size: int, seconds: float) -> None:
        self._tell(address, lambda breaker, now: breaker.succeeded(size, seconds, now))

    def late(self, address: str, size: int, seconds: float) -> None:
        self._tell(address, lambda breaker, now: breaker.late(size, seconds, now))

    def forget(self, address: str) -> None:
        """Whoever was at this address is there no more."""
        with self._lock:
            self._breakers.pop(address, None)

    def _tell(self, address: str, outcome: Callable[[Breaker, float], None]) -> None:
        with self._lock:
            breaker = self._breakers.setdefault(address, Breaker())
            before = breaker.opened
            outcome(breaker, self._clock())
            opened, failures = breaker.opened > before, breaker.failures
        if opened:
            log.warning("%s: no source for now after %d failures in a row", address, failures)
            self._account.count("breaker_opened")
