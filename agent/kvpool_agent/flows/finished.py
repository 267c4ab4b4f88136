"""A request's end: its blocks count as heat, and its prompt blocks as computed, local or shared, by where they lay."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from kvpool_agent.account import Account
from kvpool_agent.costs import Shares, Timing
from kvpool_agent.store.slab import Slab
from kvpool_client.groups import FULL, Group, reference
from kvpool_contract.status import DEVICE, ENGINE, HOST


def finish_request(
    account: Account,
    slab: Slab,
    groups: Sequence[Group],
    chains: Sequence[Sequence[bytes]],
    header: Mapping[str, Any],
    timing: Timing | None,
) -> Shares:
    """chains: all block keys of the request by group, in order. header: what the client tells, in blocks of the
    reference group: prompt, those of the prompt; asked, index of the first block that the engine did not hold, -1 when
    it held the whole prompt; loaded, how many it took from here; unknown, of a request that the client has answered
    itself, by the heads that it was told. device: tokens that the engine's device held, where it says. timing: what the
    client has measured, where it has. Returns what of it was shared."""
    asked, loaded = int(header["asked"]), int(header["loaded"])
    place = reference(groups)
    chain = chains[place]
    prompt = min(int(header["prompt"]), len(chain))
    found = prompt if asked < 0 else min(asked + loaded, prompt)
    hits = chain[:found]
    if groups[place].kind != FULL and 0 <= asked < found:
        # of a window's blocks the last alone come; by whom they were computed goes for the prefix that they stand for
        hits = [*chain[:asked], *[chain[found - 1]] * (found - asked)]
    size = groups[place].block_tokens
    start = found if asked < 0 else min(asked, found)
    account.request(hits, prompt - found, _where(start, int(header.get("device", -1)), size))
    account.forget_ways(chain)
    if int(header.get("unknown", 0)) > 0:
        let_go = sum(slab.arena.made_room(chain[max(0, asked) : prompt]))
        account.miss("evicted", let_go)
        account.miss("never_published", max(0, int(header["unknown"]) - let_go))
    shares = Shares(
        start * size,
        found * size,
        (found - start) * slab.slot_bytes,
        account.foreign(hits[start:found]),
        slab.arena.computed_again(chain[found:prompt]) * size,
        slab.space.name,
    )
    for group, keys in zip(groups, chains, strict=True):
        if group.kind == FULL:
            slab.arena.place(keys)
        slab.arena.use(keys)
    now, tokens = time.monotonic(), timing.tokens if timing is not None else prompt * size
    with slab.heat_lock:
        for group, keys in zip(groups, chains, strict=True):
            slab.heat.count(keys, now, linked=group.kind == FULL)
        if groups[place].kind == FULL:
            slab.ghost.request(chain, prompt)
            slab.reuse.request(chain, prompt)
            slab.near_identical.request(chain[:prompt], found, size, tokens)
        again = [slab.heat.repeated(keys, now) for keys in chains] if slab.below is not None else []
    if slab.below is not None:
        for keys, repeated in zip(chains, again, strict=True):
            slab.below.used(slab, keys, repeated)
    return shares


def _where(held: int, device_tokens: int, block_tokens: int) -> list[str]:
    """Where the blocks lay that the engine held: the first ones on its device, as far as it says, the rest in its host
    pool."""
    if device_tokens < 0:
        return [ENGINE] * held
    device = min(held, device_tokens // block_tokens)
    return [DEVICE] * device + [HOST] * (held - device)


def told_misses(account: Account, header: Mapping[str, Any]) -> None:
    """What became of blocks that were promised. What was looked up is what the engine lacked of the prompt: each block
    of it was loaded or is a miss for one reason."""
    if (asked := int(header["asked"])) >= 0:
        lacking = max(0, int(header["prompt"]) - asked)
        account.count("looked_up_blocks", lacking)
        account.count("loaded_blocks", min(max(0, int(header["loaded"])), lacking))
    account.miss("no_room", int(header.get("without_room", 0)))
    account.miss("evicted", int(header.get("lost", 0)))
    account.miss("deadline", int(header.get("late", 0)))
    account.miss("not_attached", int(header.get("unasked", 0)))
    account.miss("busy", int(header.get("unsent", 0)))
    if int(header.get("unknown", 0)) > 0:
        account.count("lookups_ruled_out")
