"""The longest boundary of a request that is legal in every group of the model, and what it takes to go on there.

A request can go on at a boundary, a number of tokens, if each group holds what its layers will look at: full
attention all blocks from 0, a window the blocks that cover its last tokens before the boundary, a recurrent state the
one block that ends there. Boundaries are ends of blocks of any group; where another group's block reaches beyond it,
that block counts as covering, but for a state's, which is of its end alone. The engine decides by the same rule, so
what is brought for a boundary is what it asks for.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from kvpool_client.groups import STATE, Group

NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class Blocks:
    """The whole blocks of a request in one group, in order. `lacks[i]`: the engine does not hold block i."""

    group: Group
    lacks: Sequence[bool]

    @property
    def tokens(self) -> int:
        return len(self.lacks) * self.group.block_tokens


def needed(group: Group, boundary: int) -> range:
    """Indexes of the group's blocks that a request needs to go on at the boundary."""
    size = group.block_tokens
    end = -(-boundary // size)
    if not group.window:
        return range(end)
    # a block that ends beyond the boundary brings that many tokens less of the window
    covering = max(-(-group.window // size), -(-(group.window - 1 + -boundary % size) // size))
    return range(max(0, end - covering), end)


def longest(request: Sequence[Blocks], held: Sequence[Sequence[bool]], room: int = NO_LIMIT) -> int:
    """The longest boundary, in tokens, at which every group has all it needs: a block that the engine holds, or one
    that is in `held`, by group and index. At most `room` blocks may be such that the engine lacks. 0 when there is
    none."""
    missing, lacking = [], []
    for blocks, here in zip(request, held, strict=True):
        gaps = (lack and not found for lack, found in zip(blocks.lacks, here, strict=True))
        missing.append(list(itertools.accumulate(gaps, initial=0)))
        lacking.append(list(itertools.accumulate(blocks.lacks, initial=0)))
    reach = min(blocks.tokens for blocks in request)
    sizes = {blocks.group.block_tokens for blocks in request}
    states = [blocks.group.block_tokens for blocks in request if blocks.group.kind == STATE]
    for boundary in sorted({end for size in sizes for end in range(size, reach + 1, size)}, reverse=True):
        if any(boundary % size for size in states):
            continue
        spans = [needed(blocks.group, boundary) for blocks in request]
        gaps_in = (sums[span.stop] - sums[span.start] for sums, span in zip(missing, spans, strict=True))
        lacked = sum(sums[span.stop] - sums[span.start] for sums, span in zip(lacking, spans, strict=True))
        if lacked <= room and not any(gaps_in):
            return boundary
    return 0


def wanted(request: Sequence[Blocks], boundary: int) -> list[list[int]]:
    """For each group the blocks that the boundary needs and the engine lacks."""
    return [[i for i in needed(blocks.group, boundary) if blocks.lacks[i]] for blocks in request]


def first_lacking(request: Sequence[Blocks]) -> int:
    """The first token that lies in a block which the engine lacks; the end of the request where it lacks none."""
    starts = (blocks.lacks.index(True) * blocks.group.block_tokens for blocks in request if True in blocks.lacks)
    return min(starts, default=min(blocks.tokens for blocks in request))
