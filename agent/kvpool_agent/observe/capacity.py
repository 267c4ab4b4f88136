"""How much of the arena can hold blocks that nobody uses, and what one of twice the size would have had."""

from collections.abc import Sequence

from kvpool_agent.store.slab import Slab
from kvpool_contract import status as contract


def capacity(slabs: Sequence[Slab], limit_bytes: int) -> contract.Capacity:
    """All slabs together."""
    leased = sum(slab.arena.leased_blocks * slab.slot_bytes for slab in slabs)
    reserved = sum(slab.arena.reserved_slots * slab.slot_bytes for slab in slabs)
    slots = sum(slab.arena.capacity * slab.slot_bytes for slab in slabs)
    return contract.Capacity(
        effective_bytes=max(0, slots - leased - reserved),
        leased_bytes=leased,
        reserved_bytes=reserved,
        unusable_bytes=limit_bytes - slots if slabs else 0,
        adjoining_blocks=sum(slab.arena.adjoining_blocks for slab in slabs),
        asked_blocks=sum(slab.ghost.asked for slab in slabs),
        hit_blocks=sum(slab.ghost.hits for slab in slabs),
        double_hit_blocks=sum(slab.ghost.double_hits for slab in slabs),
    )
