"""Hand-off: a member that leaves gives what it alone holds of the hot blocks to members that stay.

Hot is what more than one request has contained: who asks twice asks again. The others are asked how they are, and what
they hold, when this member is known to leave: of two that leave together one at least sees the other leaving, so no
block is left to a copy that goes as well; one that begins to leave while it takes blocks over answers that it has taken
none. Blocks are offered best first, a batch at a time, and each receiver fetches what it wants; one that declines a
part of a batch, or does not answer, is offered no more, and what it did not take goes to the others. Whatever is left
at the end is counted: it is computed anew.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kvpool_agent.account import Account
from kvpool_agent.flows.others import Others
from kvpool_agent.peer.connection import PeerError
from kvpool_agent.peer.dial import Dialer
from kvpool_agent.peer.frames import OFFER_VERSION
from kvpool_agent.policy.handoff import allot
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.store.slab import Slab, Slabs
from kvpool_contract.config import Drain

log = logging.getLogger("kvpool.handoff")

OFFER_SECONDS = 5.0  # a receiver that stands still costs no more
BATCH_SECONDS, BATCH_BLOCKS = 0.5, 256  # of a batch, at the rate of the drain
MAX_LIST = 65_536
ONCE = 1.0  # the heat of a block that one request has contained


@dataclass(frozen=True)
class _Given:
    """What a receiver has taken of its share, and why not all of it; empty where it has."""

    taken: frozenset[bytes]
    reason: str


class HandOff:
    """`run` once, at the end. Counts `drained_blocks` and, by reason, `drain_left_no_receiver`, `_declined`, `_failed`,
    `_deadline`."""

    def __init__(
        self, slabs: Slabs, others: Others, dialer: Dialer, account: Account, drain: Callable[[], Drain]
    ) -> None:
        """drain: the bounds that hold now."""
        self._slabs, self._others, self._dialer = slabs, others, dialer
        self._account, self._drain = account, drain

    def run(self) -> None:
        """Takes `maxSeconds` at most. Slabs have equal parts of the time, and what those before them leave."""
        began = time.monotonic()
        until = began + self._drain().maxSeconds
        slabs = [slab for slab in self._slabs.all if slab.space.open and self._hot(slab)]
        staying = self._others.staying(slabs[0].fingerprint, OFFER_VERSION, until) if slabs else []
        left: Counter[str] = Counter()
        for number, slab in enumerate(slabs):
            now = time.monotonic()
            left += self._hand_over(slab, staying, now + (until - now) / (len(slabs) - number))
        drained = self._account.counters.get("drained_blocks", 0)
        for reason, blocks in left.items():
            self._account.count(f"drain_left_{reason}", blocks)
        self._account.event("drained", blocks=drained, left=left.total(), seconds=round(time.monotonic() - began, 3))
        log.info("handed over %d blocks; left: %s", drained, dict(left) or "none")

    @staticmethod
    def _hot(slab: Slab) -> list[HotBlock]:
        return [block for block in slab.hottest(time.monotonic(), MAX_LIST) if block.heat > ONCE]

    def _hand_over(self, slab: Slab, staying: Sequence[str], until: float) -> "Counter[str]":
        """How many blocks are left, by reason."""
        budget = max(1, int(self._drain().maxBytesPerSecond * (until - time.monotonic())) // slab.slot_bytes)
        left, held = self._others.alone(slab, self._hot(slab), staying, until, budget)
        receivers, reason = list(held), "no_receiver"
        while left and receivers and time.monotonic() < until:
            shares = allot(left, held, receivers)
            with ThreadPoolExecutor(len(shares), "kvpool-handoff") as threads:
                offers = [threads.submit(self._give, slab, r, share, len(shares), until) for r, share in shares.items()]
                given = dict(zip(shares, (offer.result() for offer in offers), strict=True))
            taken: set[bytes] = set()
            for receiver, found in given.items():
                held[receiver] |= found.taken
                taken |= found.taken
                if found.reason:
                    receivers.remove(receiver)
                    reason = found.reason
            self._account.count("drained_blocks", len(taken))
            left = [block for block in left if block.key not in taken]
        if left and receivers:
            reason = "deadline"
        return Counter({reason: len(left)} if left else {})

    def _give(self, slab: Slab, receiver: str, share: Sequence[HotBlock], receivers: int, until: float) -> _Given:
        """receivers: that are given to at the same time."""
        taken: set[bytes] = set()
        rate = self._drain().maxBytesPerSecond / receivers
        size = max(1, min(BATCH_BLOCKS, int(rate * BATCH_SECONDS) // slab.slot_bytes))
        late = until - 2 * max(BATCH_SECONDS, size * slab.slot_bytes / rate)  # a batch may be cut by its time from then
        for start in range(0, len(share), size):
            batch = share[start : start + size]
            try:
                found = self._dialer.offer(receiver, slab.id, batch, min(until, time.monotonic() + OFFER_SECONDS))
            except PeerError as error:
                log.info("%s takes nothing over: %s", receiver, error)
                return _Given(frozenset(taken), "deadline" if time.monotonic() >= late else "failed")
            taken.update(block.key for block, here in zip(batch, found, strict=True) if here)
            if not all(found):
                return _Given(frozenset(taken), "deadline" if time.monotonic() >= late else "declined")
        return _Given(frozenset(taken), "")
