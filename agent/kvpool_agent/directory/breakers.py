"""The breakers of all peers, by address, for as long as the same incarnation of one member is there.

What is known about a peer belongs to that process: whoever comes to its address after it starts with a clean slate.
One that is distrusted (kvpool_agent.directory.distrust) is no source either, however well it serves.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable

from kvpool_agent.account import Account
from kvpool_agent.policy.breaker import CLOSED, Breaker

log = logging.getLogger("kvpool.breakers")

DISTRUSTED = "distrusted"


class Breakers:
    """Any thread may call. Counts `breaker_opened`."""

    def __init__(
        self,
        account: Account,
        clock: Callable[[], float] = time.monotonic,
        distrusts: Callable[[str], bool] = lambda _address: False,
    ) -> None:
        """distrusts: whether nothing may be taken from the member at this address."""
        self._account = account
        self._distrusts = distrusts
        self._clock = clock
        self._lock = threading.Lock()
        self._breakers: dict[str, Breaker] = {}

    def usable(self, address: str) -> bool:
        if self._distrusts(address):
            return False
        with self._lock:
            breaker = self._breakers.get(address)
            return breaker is None or breaker.usable(self._clock())

    def begin(self, address: str) -> bool:
        if self._distrusts(address):
            return False
        with self._lock:
            breaker = self._breakers.get(address)
            return breaker is None or breaker.begin(self._clock())

    def view(self, address: str) -> tuple[str, int]:
        """(state, failures in a row) of a peer."""
        distrusted = self._distrusts(address)
        with self._lock:
            breaker = self._breakers.get(address)
            state, failures = (breaker.state(self._clock()), breaker.failures) if breaker is not None else (CLOSED, 0)
            return (DISTRUSTED, failures) if distrusted else (state, failures)

    def reason(self, addresses: Iterable[str]) -> str:
        """Why what one of these members may hold is a miss, of which one at least is not usable."""
        return DISTRUSTED if any(map(self._distrusts, addresses)) else "breaker_open"

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
