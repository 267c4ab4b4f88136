"""What is known of who holds which blocks of some chains, put together from the answers of one lookup.

A lookup speaks of pieces: the groups of its chains. A call is about some of them, and its answer has a row over all
their keys, one after the other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvpool_agent.peer.frames import HELD, MADE_ROOM
from kvpool_agent.policy.groups import groups_of


@dataclass(frozen=True)
class Piece:
    """Blocks [start, end) of the chain with this number: a group that begins at `head`, or what is asked of one."""

    chain: int
    start: int
    end: int
    head: int


class Table:
    """`pieces` of the chains. One thread at a time adds; the others read keys only."""

    def __init__(self, chains: Sequence[Sequence[bytes]], most: int, starts: Sequence[int] = ()) -> None:
        """most: keys in all; chains beyond are cut, the last ones first. starts: for each chain, where the blocks begin
        that are asked for."""
        self._chains = chains
        self._starts = starts or [0] * len(chains)
        self._held: list[dict[str, list[bool]]] = [{} for _ in chains]
        self._gone: list[set[int]] = [set() for _ in chains]
        self.pieces: list[Piece] = []
        for number, (chain, first) in enumerate(zip(chains, self._starts, strict=True)):
            length = min(len(chain), first + most)
            most -= max(0, length - first)
            self.pieces += [
                Piece(number, max(first, head), end, head) for head, end in groups_of(length) if end > first
            ]

    def key(self, piece: Piece) -> bytes:
        """The key that names the piece's group."""
        return self._chains[piece.chain][piece.head]

    def keys(self, pieces: Iterable[Piece]) -> list[bytes]:
        return [key for piece in pieces for key in self._chains[piece.chain][piece.start : piece.end]]

    def add(self, pieces: Sequence[Piece], answer: Mapping[str, Sequence[int]]) -> None:
        """answer: for each address a row over `keys(pieces)`, of bytes as in frames.Located."""
        for address, row in answer.items():
            at = 0
            for piece in pieces:
                part = row[at : at + piece.end - piece.start]
                at += piece.end - piece.start
                self._gone[piece.chain].update(i for i, state in enumerate(part, piece.start) if state == MADE_ROOM)
                if HELD in part:
                    known = self._held[piece.chain].setdefault(address, [False] * len(self._chains[piece.chain]))
                    for i, state in enumerate(part, piece.start):
                        known[i] = known[i] or state == HELD

    def held(self) -> list[dict[str, Sequence[bool]]]:
        """For each chain, by address, which of its blocks are held there."""
        return [dict(rows) for rows in self._held]

    def gone(self) -> tuple[frozenset[int], ...]:
        """For each chain, which of its blocks somebody held and let go; empty where there is none of any."""
        return tuple(map(frozenset, self._gone)) if any(self._gone) else ()

    def reached(self, answered: Iterable[Piece]) -> list[int]:
        """For each chain, how many of its blocks from the first on lie in pieces about which there was an answer."""
        known = set(answered)
        found = list(self._starts)
        for piece in self.pieces:
            if piece in known and found[piece.chain] == piece.start:
                found[piece.chain] = piece.end
        return found
