"""Whether a block in the arena still is what was stored: asked before its bytes go anywhere.

One that changed would be refused by whoever checks it later, and count as this member's fault: it is dropped here
instead.
"""

import logging

from kvpool_agent.account import Account
from kvpool_agent.store.arena import Held
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of


def intact(slab: Slab, block: Held, account: Account, log: logging.Logger, otherwise: str = "") -> bool:
    """False where the bytes don't match their tag: the block is dropped then, counted, and told in the caller's log.
    otherwise: what becomes of it there beyond that, as the sentence's end."""
    if tag_of(block.key, slab.view(block.slot)) == block.tag:
        return True
    account.count("tag_failures")
    log.error("a block in the arena does not match its tag any more; it is dropped%s", otherwise)
    slab.arena.drop(block.key)
    return False
