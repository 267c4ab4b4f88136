"""A restarted worker takes up the arena of the one before it: found at once, judged block by block, then counted.

What was judged is served while the rest still is. Recovered blocks that another replica computed count as shared, as
before. Their heat is not recovered: it grows again with the requests that contain them.
"""

import logging
import time

from kvpool_agent.account import Account
from kvpool_agent.store.headers import SlotHeader
from kvpool_agent.store.recovery import RECOVERY_SECONDS, recover
from kvpool_agent.store.slab import Slabs

log = logging.getLogger("kvpool.recover")


class RecoveryFlow:
    """Made before anybody can ask for a block or attach; `run` once, on a thread of its own."""

    def __init__(self, slabs: Slabs, account: Account) -> None:
        self._left = slabs.reopen()
        self._account = account

    def run(self) -> int:
        """How many blocks are here again."""
        if not self._left:
            return 0
        until = time.monotonic() + RECOVERY_SECONDS
        found = [recover(slab, table, until, self._adopted) for slab, table in self._left]
        blocks, discarded = sum(one.blocks for one in found), sum(one.discarded for one in found)
        self._account.count("recovered_blocks", blocks)
        self._account.count("discarded_slots", discarded)
        self._account.event("recovered", blocks=blocks, discarded=discarded)
        log.info("recovered %d blocks of the last worker, discarded %d slots", blocks, discarded)
        return blocks

    def _adopted(self, block: SlotHeader) -> None:
        if block.foreign:
            self._account.computed_elsewhere(block.key)
