"""Prompts that were computed and look like one and the same but for something small: they are alike for as many blocks,
part in the next one, and what follows is of the same length. A date or an id in a prompt does that.

Known are block keys and lengths alone. Behind the first block that differs all keys do, so what follows can't be
compared, and equal lengths are what speaks for it: prompts that are unrelated, and of one length by their making, are
shown as well.
"""

import collections
from collections.abc import Sequence
from dataclasses import dataclass

KEPT = 256  # requests
LEAST_TOKENS = 256  # that were computed: fewer are a question behind a prefix that is shared as it should be
LEAST_PROMPTS = 8
SPREAD = 0.02  # of what follows, from the shortest to the longest
SHOWN = 3
_Place = tuple[bytes, int, int]  # the key before it, tokens up to it, tokens of a block


@dataclass(frozen=True)
class Parting:
    """`prompts` of `shortest` to `longest` tokens that part within `block_tokens` behind their first `same`."""

    prompts: int
    same: int
    block_tokens: int
    shortest: int
    longest: int


class NearIdentical:
    """Of the last requests of one slab."""

    def __init__(self) -> None:
        self._last: collections.deque[tuple[_Place, int, bytes]] = collections.deque(maxlen=KEPT)

    def request(self, chain: Sequence[bytes], found: int, block_tokens: int, tokens: int) -> None:
        """A prompt of so many tokens, whose first `found` blocks were found; the others were computed."""
        if found < len(chain) and tokens - found * block_tokens >= LEAST_TOKENS:
            place = chain[found - 1] if found else b"", found * block_tokens, block_tokens
            self._last.append((place, tokens, chain[found]))

    def partings(self) -> list[Parting]:
        """Where at least eight different prompts part, and at least half of those that part there are of one length,
        to two parts of a hundred; where most do so, first."""
        lengths: dict[_Place, dict[bytes, int]] = {}
        for place, tokens, after in self._last:
            lengths.setdefault(place, {})[after] = tokens  # one that came again is one prompt
        found = []
        for (_, same, block_tokens), prompts in lengths.items():
            run = _longest_run(sorted(tokens - same for tokens in prompts.values()))
            if len(run) >= max(LEAST_PROMPTS, len(prompts) / 2):
                found.append(Parting(len(run), same, block_tokens, same + run[0], same + run[-1]))
        return sorted(found, key=lambda one: -one.prompts)[:SHOWN]


def _longest_run(ordered: Sequence[int]) -> Sequence[int]:
    """The longest part of these in which no two lie further from each other than they may."""
    best, start = (0, 0), 0
    for end in range(1, len(ordered) + 1):
        while ordered[end - 1] > (1 + SPREAD) * ordered[start]:
            start += 1
        if end - start > best[1] - best[0]:
            best = start, end
    return ordered[slice(*best)]
