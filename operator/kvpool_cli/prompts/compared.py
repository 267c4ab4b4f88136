"""Where two prompts part, in tokens, and what that costs the one that comes second. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

GRAM = 8  # tokens that must agree in a row before two prompts count as together again


@dataclass(frozen=True)
class Parting:
    """`at`: the first token that differs, the length of the shorter prompt where there is none. `again`: tokens of the
    second prompt behind it that the first one has as well, in the same order, in runs of at least eight: what is
    computed again because of what stands before. `skips`: tokens that lie on each side between the first difference
    and the next such run; -1 where none follows."""

    at: int
    again: int
    skips: tuple[int, int]


def part(first: Sequence[int], second: Sequence[int]) -> Parting:
    """Compares two prompts' token ids. Linear in their lengths."""
    at = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    places: dict[tuple[int, ...], list[int]] = {}
    for i in range(len(first) - GRAM, at - 1, -1):
        places.setdefault(tuple(first[i : i + GRAM]), []).append(i)
    again, skips = 0, (-1, -1)
    i, j = at, at
    while j <= len(second) - GRAM:
        found = places.get(tuple(second[j : j + GRAM]), [])
        while found and found[-1] < i:  # they stand latest first, and are passed for good
            found.pop()
        if not found:
            j += 1
            continue
        i = found[-1]
        if skips[0] < 0:
            skips = i - at, j - at
        while i < len(first) and j < len(second) and first[i] == second[j]:
            again, i, j = again + 1, i + 1, j + 1
    return Parting(at, again, skips)
