"""Blocks under names of another epoch of their cache namespace's key: found, and named anew.

A key file may hold two keys. Names can't be made from one another, so what a request needs is looked for under both,
and what lies here under the other one is copied into a slot under the name of now, with a tag of its own. So every
part beyond this one knows one name for each block, and a key that is taken out of the file leaves nothing behind that
is still in use.
"""

import time
from collections.abc import Sequence

from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of

RENAME_SECONDS = 30.0


def in_either(slab: Slab, now: Sequence[bytes], other: Sequence[bytes]) -> list[bytes]:
    """For each block the name that it has here: that of now, unless it lies here under the other one alone."""
    here, there = slab.arena.held(now), slab.arena.held(other)
    return [b if held_there and not held else a for a, b, held, held_there in zip(now, other, here, there, strict=True)]


def name_anew(slab: Slab, now: Sequence[bytes], other: Sequence[bytes], *, linked: bool) -> int:
    """Gives the blocks of a chain that lie here under the other name the one of now; how many. linked: whether each
    block's parent is the one before it."""
    count, parent = 0, b""
    found = in_either(slab, now, other)
    for new, old in zip(now, found, strict=True):
        if new != old and _copy(slab, old, new, parent if linked else b""):
            count += 1
        parent = new
    return count


def _copy(slab: Slab, old: bytes, new: bytes, parent: bytes) -> bool:
    lease, (held,) = slab.arena.lease([old], time.monotonic(), RENAME_SECONDS)
    try:
        slots = slab.arena.reserve(1, time.monotonic()) if held is not None else []
        if held is None or not slots:
            return False
        source, view = slab.view(held.slot), slab.view(slots[0])
        view[:] = source
        if tag_of(old, source) != held.tag:  # its bytes have changed since; a tag of now would hide it
            slab.arena.give_back(slots)
            slab.arena.drop(old)
            return False
        slab.arena.commit(new, parent, slots[0], tag_of(new, view), foreign=held.foreign)
    finally:
        slab.arena.release(lease)
    slab.arena.drop(old)
    return True


def named(slab: Slab, engine_keys: Sequence[bytes], hash_bytes: int) -> list[bytes]:
    """The names that these blocks have here; of those that are not here the ones of now."""
    now, *others = [[slab.key(key, hash_bytes, name) for key in engine_keys] for name in slab.space.names]
    return in_either(slab, now, others[0]) if others else now


def named_chains(
    slab: Slab, chains: Sequence[Sequence[bytes]], hash_bytes: int
) -> tuple[list[list[bytes]], list[list[bytes]]]:
    """The names of now of these blocks, and those of another epoch; no second ones where there is none."""
    now, *others = [named_by(slab, chains, hash_bytes, name) for name in slab.space.names]
    return now, others[0] if others else []


def named_by(slab: Slab, chains: Sequence[Sequence[bytes]], hash_bytes: int, name: bytes) -> list[list[bytes]]:
    """The names of these blocks by one key of names."""
    return [[slab.key(key, hash_bytes, name) for key in chain] for chain in chains]
