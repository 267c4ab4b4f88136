"""The arena and its cache namespaces, as the status tells of them: sizes and names, nothing of a key."""

from kvpool_agent.keyring import Keyring
from kvpool_agent.observe.capacity import capacity
from kvpool_agent.store import huge
from kvpool_agent.store.slab import Slab, Slabs
from kvpool_contract import status as contract


def arena(slabs: Slabs) -> contract.Arena:
    """All slabs together."""
    found = slabs.all
    return contract.Arena(
        limit_bytes=slabs.limit_bytes,
        used_bytes=sum(slab.arena.used_slots * slab.slot_bytes for slab in found),
        blocks=sum(len(slab.arena) for slab in found),
        foreign_blocks=sum(slab.arena.foreign for slab in found),
        evicted_blocks=sum(slab.arena.evicted for slab in found),
        orphan_blocks=sum(slab.arena.orphan_blocks for slab in found),
        capacity=capacity(found, slabs.limit_bytes),
        huge_pages=huge.seen() if slabs.huge_pages else contract.HugePages(),
    )


def reuse(slabs: Slabs) -> dict[str, contract.Reuse]:
    """By cache namespace; those of which no request has ended are left out."""
    found = {}
    for slab in slabs.all:
        with slab.heat_lock:  # who counts holds it
            asked, within = slab.reuse.asked, slab.reuse.histogram()
            partings = slab.near_identical.partings()
        if asked:
            alike = [contract.NearIdentical(p.prompts, p.same, p.block_tokens, p.shortest, p.longest) for p in partings]
            found[slab.space.name] = contract.Reuse(slab.slot_bytes, asked, within, alike)
    return found


def cache_namespaces(keyring: Keyring, slabs: Slabs) -> list[contract.CacheNamespace]:
    """Each one with a key; none where there are no keys."""
    return [_one(keyring, number, slabs.all) for number in range(len(keyring.spaces)) if keyring.keyed]


def _one(keyring: Keyring, number: int, slabs: tuple[Slab, ...]) -> contract.CacheNamespace:
    space = keyring.spaces[number]
    slab = next((one for one in slabs if one.number == number), None)
    if slab is None:
        return contract.CacheNamespace(space.name, len(space.names), space.problem)
    size = slab.slot_bytes
    return contract.CacheNamespace(
        space.name,
        len(space.names),
        space.problem,
        slab.arena.slot_count * size,
        slab.arena.used_slots * size,
        len(slab.arena),
    )
