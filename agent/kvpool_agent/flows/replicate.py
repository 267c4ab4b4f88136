"""Second copies: now and then the hottest blocks that this member alone holds are offered to another one.

So a member that dies takes nothing hot along. The receiver fetches them under the bounds of a purpose of its own, as
replica copies, and only where nothing hotter makes room. At each look there are offered as many as the bytes per second
allow until the next.
"""

import logging
import time
from collections.abc import Callable

from kvpool_agent.account import Account
from kvpool_agent.flows.others import Others
from kvpool_agent.flows.watch import SlabWatch
from kvpool_agent.peer.connection import PeerError
from kvpool_agent.peer.dial import Dialer
from kvpool_agent.peer.frames import COPY_VERSION, MAX_OFFER
from kvpool_agent.policy.handoff import allot
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.policy.replication import Offered
from kvpool_agent.store.slab import Slab, Slabs

log = logging.getLogger("kvpool.replicate")

LOOK_SECONDS = 10.0
HOTTEST = 4096  # blocks that are looked at
GIVE_SECONDS = 3 * LOOK_SECONDS  # for what takes LOOK_SECONDS at the rate


class Replicator(SlabWatch):
    """One thread. Counts `replicated_blocks`, and `replicas_declined`: offered, and not taken."""

    every = True

    def __init__(self, slabs: Slabs, others: Others, dialer: Dialer, account: Account, rate: Callable[[], int]) -> None:
        """rate: bytes per second that may be given now, 0 where nothing is offered."""
        super().__init__(slabs, "replicate", LOOK_SECONDS)
        self._others, self._dialer = others, dialer
        self._account, self._rate = account, rate
        self._offered: dict[bytes, Offered] = {}

    def look(self, slab: Slab) -> None:
        budget = int(self._rate() * self._seconds) // slab.slot_bytes
        if not budget or not slab.space.open:
            return
        offered, now = self._offered.setdefault(slab.id, Offered()), time.monotonic()
        hot = offered.candidates(slab.hottest(now, HOTTEST), now)
        until = now + GIVE_SECONDS
        staying = self._others.staying(slab.fingerprint, COPY_VERSION, until) if hot else []
        alone, held = self._others.alone(slab, hot, staying, until, budget)
        if not held:
            return
        best = alone[:budget]
        offered.note(best, now)
        for receiver, share in allot(best, held, list(held)).items():
            self._give(slab, receiver, share, until)

    def _give(self, slab: Slab, receiver: str, share: list[HotBlock], until: float) -> None:
        taken = 0
        try:
            for start in range(0, len(share), MAX_OFFER):
                batch = share[start : start + MAX_OFFER]
                taken += sum(self._dialer.offer(receiver, slab.id, batch, until, copy=True))
        except PeerError as error:
            log.info("%s takes no copies: %s", receiver, error)
        self._account.count("replicated_blocks", taken)
        self._account.count("replicas_declined", len(share) - taken)
