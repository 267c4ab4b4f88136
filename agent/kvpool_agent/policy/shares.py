"""How the arena's memory is shared out among cache namespaces: a part of its own for each, for the life of a pod.

Parts that can't grow into each other hold every quota by themselves, and what one tenant stores never makes another's
blocks go, which could be seen from outside.
"""

from collections.abc import Sequence


def parts(size: int, slot_bytes: int, percents: Sequence[int]) -> list[tuple[int, int]]:
    """(offset, bytes) of each part: the first one is what the others leave, and lies at the end. All begin at a
    multiple of `slot_bytes`, so that slots have one numbering."""
    found, at = [], 0
    for percent in percents[1:]:
        part = size * percent // 100 // slot_bytes * slot_bytes
        found.append((at, part))
        at += part
    return [(at, size - at), *found]
