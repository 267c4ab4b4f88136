"""A request's end: its blocks count as heat, and its prompt blocks as computed, local or shared."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from kvpool_agent.account import Account
from kvpool_agent.store.slab import Slab
from kvpool_client.groups import FULL, Group, reference


def finish_request(
    account: Account,
    slab: Slab,
    groups: Sequence[Group],
    chains: Sequence[Sequence[bytes]],
    prompt_blocks: int,
    asked: int,
    loaded: int,
) -> None:
    """chains: all block keys of the request by group, in order. In blocks of the reference group: prompt_blocks, those
    of the prompt; asked: index of the first block that the engine did not hold, -1 when it held the whole prompt;
    loaded: how many it took from here."""
    place = reference(groups)
    chain = chains[place]
    prompt = min(prompt_blocks, len(chain))
    found = prompt if asked < 0 else min(asked + loaded, prompt)
    hits = chain[:found]
    if groups[place].kind != FULL and 0 <= asked < found:
        # of a window's blocks the last alone come; by whom they were computed goes for the prefix that they stand for
        hits = [*chain[:asked], *[chain[found - 1]] * (found - asked)]
    account.request(hits, prompt - found)
    for group, keys in zip(groups, chains, strict=True):
        if group.kind == FULL:
            slab.arena.place(keys)
        slab.arena.use(keys)
    now = time.monotonic()
    with slab.heat_lock:
        for group, keys in zip(groups, chains, strict=True):
            slab.heat.count(keys, now, linked=group.kind == FULL)
        if groups[place].kind == FULL:
            slab.ghost.request(chain, prompt)
        again = [slab.heat.repeated(keys, now) for keys in chains] if slab.below is not None else []
    if slab.below is not None:
        for keys, repeated in zip(chains, again, strict=True):
            slab.below.used(slab, keys, repeated)


def told_misses(account: Account, header: Mapping[str, Any]) -> None:
    """What became of blocks that were promised, and of a request that the client has answered itself, by the heads
    that it was told."""
    account.miss("no_room", int(header.get("without_room", 0)))
    account.miss("evicted", int(header.get("lost", 0)))
    account.miss("deadline", int(header.get("late", 0)))
    unknown = int(header.get("unknown", 0))
    if unknown > 0:
        account.count("lookups_ruled_out")
        account.miss("never_published", unknown)
