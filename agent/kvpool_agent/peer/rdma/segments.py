"""Which reads bring blocks from their places there to their slots here: as few and as long ones as can be."""

from collections.abc import Iterable

MAX_SEGMENT = 64 << 20  # bytes of one read: its queue is held up no longer by one of several


def segments(moves: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int, int]]:
    """moves: (address there, offset here) of each block of `size` bytes. Blocks that lie one after another at both ends
    are read as one. Returns (address there, offset here, bytes)."""
    found: list[tuple[int, int, int]] = []
    for there, here in moves:
        if found:
            begin, local, length = found[-1]
            if (begin + length, local + length) == (there, here) and length + size <= max(MAX_SEGMENT, size):
                found[-1] = begin, local, length + size
                continue
        found.append((there, here, size))
    return found
