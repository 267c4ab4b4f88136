"""From whom the blocks of a plan are fetched: each from a member that holds it, in as few pieces as there can be."""

from collections.abc import Mapping, Sequence


def share(held: Mapping[str, Sequence[bool]], wanted: Sequence[int]) -> list[tuple[str, list[int]]]:
    """(address, indexes) of each piece, in order: at each index the member that holds the longest run from there. Ends
    at the first index that nobody holds."""
    pieces: list[tuple[str, list[int]]] = []
    at = 0
    while at < len(wanted):
        best, end = "", at
        for address in sorted(held):
            stop = at
            while stop < len(wanted) and held[address][wanted[stop]]:
                stop += 1
            if stop > end:
                best, end = address, stop
        if end == at:
            break
        pieces.append((best, list(wanted[at:end])))
        at = end
    return pieces
