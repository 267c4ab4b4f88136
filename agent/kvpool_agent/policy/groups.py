"""How a chain is cut into groups of doubling size: 16, 16, 32, 64, 128 … blocks.

Short prefixes, which many requests share, lie in small groups, and a chain of any length in few of them: a lookup costs
one call for each at most. A group is named by the key of its first block, which commits to the whole prefix.
"""

FIRST_BLOCKS = 16


def begins_group(position: int) -> bool:
    """Whether the block at this position of its chain, from 0, is the first of a group."""
    return position == 0 or (position >= FIRST_BLOCKS and position & (position - 1) == 0)


def groups_of(length: int) -> list[tuple[int, int]]:
    """[start, end) of each group of a chain of `length` blocks; the last one may not be full."""
    found = []
    start, end = 0, FIRST_BLOCKS
    while start < length:
        found.append((start, min(end, length)))
        start, end = end, 2 * end
    return found
