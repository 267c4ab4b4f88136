"""Which blocks a newcomer warms, and from whom: the members' lists merged, cut to a budget, in order.

Heats of equal keys add up, since each member counts its own requests. Blocks of equal heat are shuffled within
parents-first order, so that newcomers of one cohort ask for different blocks first and can serve each other.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvpool_agent.policy.heat import HotBlock


@dataclass(frozen=True)
class WarmBlock:
    """A block to fetch and the members that hold it."""

    key: bytes
    parent: bytes
    depth: int
    heat: float
    holders: tuple[str, ...]


def plan_warmup(lists: Mapping[str, Sequence[HotBlock]], budget_blocks: int, chance: random.Random) -> list[WarmBlock]:
    """The hot set: the hottest `budget_blocks` blocks of all lists, closed under prefixes as far as the lists are,
    hottest first and parents before their children."""
    merged: dict[bytes, WarmBlock] = {}
    for member, blocks in lists.items():
        for block in blocks:
            known = merged.get(block.key)
            holders, heat = (known.holders, known.heat) if known else ((), 0.0)
            merged[block.key] = WarmBlock(block.key, block.parent, block.depth, heat + block.heat, (*holders, member))
    # a parent whose list entry was cut elsewhere may look colder than its child: it is as hot as the hottest child
    for key in sorted(merged, key=lambda key: -merged[key].depth):
        current = merged[key]
        parent = merged.get(current.parent)
        if parent is not None and parent.heat < current.heat:
            merged[parent.key] = WarmBlock(parent.key, parent.parent, parent.depth, current.heat, parent.holders)
    order = list(merged.values())
    chance.shuffle(order)
    order.sort(key=lambda block: (-block.heat, block.depth))
    return order[:budget_blocks]


def share_out(blocks: Sequence[WarmBlock], batch: int, chance: random.Random) -> list[tuple[str, list[WarmBlock]]]:
    """Batches of at most `batch` blocks, each for one holder, in the order of the plan; a block that several
    members hold goes to one of them by chance."""
    open_batches: dict[str, list[WarmBlock]] = {}
    batches: list[tuple[str, list[WarmBlock]]] = []
    for block in blocks:
        holder = chance.choice(block.holders)
        current = open_batches.get(holder)
        if current is None or len(current) >= batch:
            current = []
            open_batches[holder] = current
            batches.append((holder, current))
        current.append(block)
    return batches
