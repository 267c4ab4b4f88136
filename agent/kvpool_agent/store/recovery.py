"""Recovery after a restart: the slots that the predecessor left, judged one by one.

A slot is a block again when its header checks and its bytes hash to its tag; a block is served only after that, so
what a kill, a fault of memory or a bug has left behind is found before anybody reads it. Any other slot is free.
Hashing runs at memory speed without the interpreter's lock, on a thread of its own; slots that are not judged when
the time is over are given up.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from kvpool_agent.store.headers import SlotHeader
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.table import HeaderTable
from kvpool_agent.store.tag import tag_of

RECOVERY_SECONDS = 60.0


@dataclass(frozen=True)
class Recovered:
    """Blocks that are here again, and slots that said they held one and did not."""

    blocks: int
    discarded: int


def recover(slab: Slab, table: HeaderTable, until: float, adopted: Callable[[SlotHeader], None]) -> Recovered:
    """Judges every unjudged slot of the slab's arena. until: on the monotonic clock; `adopted` is called for each
    block."""
    blocks = discarded = 0
    try:
        for slot in slab.arena.unjudged():
            header = table.read(slot) if time.monotonic() < until else None
            if header is not None and tag_of(header.key, slab.view(slot)) != header.tag:
                header = None
            if slab.arena.judge(slot, header) and header is not None:
                blocks += 1
                adopted(header)
            else:
                discarded += 1
    finally:  # after a fault, too: while a slot is not judged nothing can be stored
        for slot in slab.arena.unjudged():
            slab.arena.judge(slot, None)
    return Recovered(blocks, discarded)
