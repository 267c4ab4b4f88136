"""What plans keep in the arena until the engine loads it: one lease for each plan that has promised blocks.

A plan that is never loaded from leaves its lease behind, which ends by itself; so the oldest are forgotten.
"""

import threading

from kvpool_agent.flows.lookup import NO_LEASE
from kvpool_agent.store.slab import Slab

MAX_PLANS = 1024


class PlanLeases:
    """Of one session. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: dict[int, tuple[Slab, int]] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def keep(self, plan: int, slab: Slab | None, lease: int) -> None:
        """The plan has promised what this lease keeps, in the slab; NO_LEASE: nothing."""
        if slab is None or lease == NO_LEASE:
            return
        with self._lock:
            self._leases[plan] = slab, lease
            while len(self._leases) > MAX_PLANS:
                del self._leases[next(iter(self._leases))]

    def release(self, plan: int) -> None:
        """The engine has it now; a plan without a lease harms nothing."""
        with self._lock:
            found = self._leases.pop(plan, None)
        if found is not None:
            slab, lease = found
            slab.arena.release(lease)

    def release_all(self) -> None:
        """The session has ended: nobody loads from it any more."""
        for plan in list(self._leases):
            self.release(plan)
