"""A request as it is planned: its blocks by KV group, what of them is held where, and what a boundary needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvpool_agent.directory.locate import Holders
from kvpool_agent.flows.fetch import Wanted
from kvpool_agent.policy import sources
from kvpool_agent.policy.boundary import NO_LIMIT, Blocks, first_lacking, longest, wanted
from kvpool_agent.store.slab import Slab
from kvpool_client.groups import FULL, STATE, reference


@dataclass(frozen=True)
class Request:
    """`blocks` and `keys` by group: what the engine lacks, and the keys of those same blocks; `room`: how many blocks
    its host pool can take in; `again`: it was preempted after an earlier plan, which has counted its misses; `others`:
    the same keys under another epoch of the cache namespace's key, if there is one."""

    blocks: Sequence[Blocks]
    keys: Sequence[Sequence[bytes]]
    room: int
    again: bool = False
    others: Sequence[Sequence[bytes]] = ()

    def chosen(self, indexes: Sequence[Sequence[int]]) -> list[Wanted]:
        """The blocks at these indexes, by group. Those of a full-attention chain have a parent."""
        return [
            Wanted(keys[i], keys[i - 1] if i and blocks.group.kind == FULL else b"")
            for blocks, keys, chosen in zip(self.blocks, self.keys, indexes, strict=True)
            for i in chosen
        ]

    def starts(self, here: Sequence[Sequence[bool]]) -> list[int]:
        """By group, the first block that neither the engine nor the arena holds; the end where there is none."""
        return [
            next((i for i, lack in enumerate(blocks.lacks) if lack and not held[i]), len(blocks.lacks))
            for blocks, held in zip(self.blocks, here, strict=True)
        ]

    def up_to(self, boundary: int, rows: Sequence[Sequence[bool]]) -> list[list[bool]]:
        """By group and block, what of `rows` lies before the boundary, or covers it."""
        return [
            [flag and i * blocks.group.block_tokens < boundary for i, flag in enumerate(row)]
            for blocks, row in zip(self.blocks, rows, strict=True)
        ]

    @property
    def is_full_attention(self) -> bool:
        return all(blocks.group.kind == FULL for blocks in self.blocks)

    @property
    def has_states(self) -> bool:
        return any(blocks.group.kind == STATE for blocks in self.blocks)

    def place_of(self, boundary: int) -> tuple[int, int]:
        """The reference group, and its block at the boundary."""
        number = reference([blocks.group for blocks in self.blocks])
        return number, boundary // self.blocks[number].group.block_tokens

    def beyond(self, boundary: int) -> int:
        """Blocks of the reference group that are computed when the request goes on at the boundary."""
        blocks = self.blocks[reference([blocks.group for blocks in self.blocks])]
        size = blocks.group.block_tokens
        return max(0, len(blocks.lacks) - max(-(-boundary // size), first_lacking(self.blocks) // size))


def not_in_arena(slab: Slab, request: Request, boundary: int) -> tuple[list[list[int]], list[Wanted]]:
    """What the boundary needs and is not here: indexes by group, and the blocks."""
    indexes = [
        [i for i in chosen if not held[i]]
        for chosen, held in zip(wanted(request.blocks, boundary), in_arena(slab, request), strict=True)
    ]
    return indexes, request.chosen(indexes)


def lacking(runs: Any, count: int) -> list[bool]:
    """Which of so many blocks lie in these runs, each from its first index to the one after its last. Raises ValueError
    where they are no such runs, or none."""
    lacks, last = [False] * count, 0
    for first, end in runs:
        if not (type(first) is type(end) is int and last <= first < end <= count):
            raise ValueError(f"run from {first!r} to {end!r} of a lookup of {count} blocks")
        lacks[first:end] = [True] * (end - first)
        last = end
    if not last:
        raise ValueError("a lookup that lacks nothing")
    return lacks


def beginning(request: Request, hits: Sequence[Sequence[int]], limit: int) -> tuple[int, list[bytes]]:
    """Up to where a request goes on from these blocks, in tokens, and the keys of all blocks up to there; of a longer
    one than the limit the part that can be gone on from, where there is one."""
    groups = [blocks.group for blocks in request.blocks]
    tokens = max(
        ((i + 1) * group.block_tokens for group, row in zip(groups, hits, strict=True) for i in row), default=0
    )
    if tokens > limit:
        size = max(group.block_tokens for group in groups)
        tokens = limit // size * size if request.is_full_attention else 0
    chains = zip(request.keys, groups, strict=True)
    return tokens, [key for keys, group in chains for key in keys[: tokens // group.block_tokens]]


def either(one: Sequence[Sequence[bool]], other: Sequence[Sequence[bool]]) -> list[list[bool]]:
    return [[a or b for a, b in zip(*rows, strict=True)] for rows in zip(one, other, strict=True)]


def in_arena(slab: Slab, request: Request) -> list[list[bool]]:
    return [slab.arena.held(keys) for keys in request.keys]


def anywhere(here: Sequence[Sequence[bool]], found: Holders) -> list[list[bool]]:
    return [
        [any(flags) for flags in zip(own, *members.values(), strict=True)]
        for own, members in zip(here, found.held, strict=True)
    ]


def reach_of(request: Request, held: Sequence[Sequence[bool]], *kinds: str) -> int:
    """The longest boundary if groups of other kinds asked for nothing; 0 where there are none of these."""
    chosen = [i for i, blocks in enumerate(request.blocks) if blocks.group.kind in kinds]
    return longest([request.blocks[i] for i in chosen], [held[i] for i in chosen], NO_LIMIT) if chosen else 0


def pieces_of(
    request: Request, indexes: Sequence[Sequence[int]], held: Sequence[Mapping[str, Sequence[bool]]]
) -> list[tuple[str, list[Wanted], bool]]:
    """What to fetch from whom, in order, and whether others hold the same; neighbours at one member are one piece."""
    pieces: list[tuple[str, list[Wanted], bool]] = []
    for place, chosen in enumerate(indexes):
        for address, part in sources.share(held[place], chosen):
            blocks = request.chosen([part if i == place else () for i in range(len(indexes))])
            others = sum(row[part[0]] for row in held[place].values()) > 1
            if pieces and pieces[-1][0] == address:
                _, before, also = pieces.pop()
                blocks, others = [*before, *blocks], also and others
            pieces.append((address, blocks, others))
    return pieces
