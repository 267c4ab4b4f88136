"""A request's end: its blocks count as heat, and its prompt blocks as computed, local or shared."""

import time
from collections.abc import Sequence

from kvpool_agent.account import Account
from kvpool_agent.store.slab import Slab


def finish_request(
    account: Account, slab: Slab, chain: Sequence[bytes], prompt_blocks: int, asked: int, loaded: int
) -> None:
    """chain: all block keys of the request, in order. asked: index of the first block that the engine did not hold,
    -1 when it held the whole prompt; loaded: how many it took from here."""
    prompt = min(prompt_blocks, len(chain))
    found = prompt if asked < 0 else min(asked + loaded, prompt)
    account.request(chain[:found], prompt - found)
    slab.arena.place(chain)
    with slab.heat_lock:
        slab.heat.count(chain, time.monotonic())
