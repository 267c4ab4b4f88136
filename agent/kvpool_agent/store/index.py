"""Which block lies in which slot, and how blocks hang together: parents, children, orphans, places in their chains.

A block's place in its chain, and so its directory group, follows from its parent's: a step for each block, and none of
the frames that bring blocks has to tell it. A block that came without its parent gets its place from the next whole
chain that contains it (`place`), at the latest when the request that brought it ends. Used under the arena's lock.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kvpool_agent.policy.groups import begins_group
from kvpool_agent.store.feed import Change, Feed
from kvpool_agent.store.heads import Heads, name_of
from kvpool_agent.store.orphans import Orphans

NO_PARENT = b""
UNKNOWN = -1
EVERY_DEPTH = 1 << 62


@dataclass(slots=True, eq=False)
class Block:
    key: bytes
    slot: int
    parent: bytes
    tag: bytes
    foreign: bool
    adopted: bool = False  # computed elsewhere, and this agent's own since its owner has left
    leases: int = 0
    dropped: bool = False
    position: int = UNKNOWN  # in its chain
    head: bytes = b""  # the first block of its directory group; empty while the position is not known


class Index:
    """The blocks by key. Each call costs the same however many there are, but those that say otherwise."""

    def __init__(self, *, declared_alone: bool = False) -> None:
        """declared_alone: whether others are told of no block before some are declared."""
        self.blocks: dict[bytes, Block] = {}
        self.orphans = Orphans()
        self.feed = Feed()
        self.heads = Heads()  # of the blocks without a parent: chains begin there, and windows' blocks lie alone
        self.foreign = 0
        self.adjoining = 0
        self._children: dict[bytes, set[bytes]] = {}
        self.told_depth = EVERY_DEPTH  # in blocks; others are told of none that lies deeper in its chain
        # others are told of no block but these; None: of all
        self._declared: frozenset[bytes] | None = frozenset() if declared_alone else None
        self.told_heads = Heads() if declared_alone else self.heads  # those that others may be told of

    @property
    def tells_all(self) -> bool:
        """Whether others may be told of every block."""
        return self.told_depth == EVERY_DEPTH and self._declared is None

    def may_tell(self, key: bytes) -> bool:
        """Whether others may be told of this block, wherever it lies in its chain."""
        return self._declared is None or key in self._declared

    def is_told(self, key: bytes) -> bool:
        """Whether the block is here and others may be told so."""
        block = self.blocks.get(key)
        if block is None or not self.may_tell(key):
            return False
        return self.told_depth == EVERY_DEPTH or 0 <= block.position < self.told_depth

    def declare(self, keys: frozenset[bytes]) -> None:
        """From now on others are told of these blocks alone, where it is for declared ones. Costs a step for each that
        they may be told of now and not before, or before and not now."""
        if self._declared is None:
            return
        changed, self._declared = self._declared ^ keys, keys
        for key in changed:
            block = self.blocks.get(key)
            if block is None:
                continue
            if block.parent == NO_PARENT:
                (self.told_heads.put if key in keys else self.told_heads.take)(name_of(key))
            if block.head:
                self.feed.add(Change(key, block.head, held=self.is_told(key)))

    def has_children(self, key: bytes) -> bool:
        return key in self._children

    def takes(self, key: bytes, parent: bytes) -> bool:
        """Whether a block may come: one that is here may not, nor one that would hang below itself, as a member may
        say of what it offers: no request could reach it, and nothing could make it go. Costs a step for each block
        above it, where some below it are here already."""
        if key in self.blocks:
            return False
        if key in self._children:
            while (above := self.blocks.get(parent)) is not None:
                parent = above.parent
        return parent != key

    def add(self, block: Block) -> None:
        """A block that it takes. Costs a step for each descendant that waited for its place."""
        key = block.key
        self.blocks[key] = block
        self.foreign += block.foreign
        if block.parent == NO_PARENT:
            self.heads.put(name_of(key))
            if self.may_tell(key):
                self.told_heads.put(name_of(key))
            self._put(block, 0, key)
        else:
            self._children.setdefault(block.parent, set()).add(key)
            parent = self.blocks.get(block.parent)
            if parent is None:
                self.orphans.add(key, proved=False)
            else:
                self._put_below(parent, block)
        for child in self._children.get(key, ()):
            self.orphans.discard(child)
        self.adjoining += self._adjoining(block)
        self._place_below(key)

    def remove(self, block: Block, *, reachable: bool = True) -> Block | None:
        """Forgets a block; reachable: whether a request could reach it, and so what hangs below it, while it was here.
        Returns its parent when nothing hangs on that any more. Costs a step for each child."""
        key = block.key
        self.adjoining -= self._adjoining(block)
        del self.blocks[key]
        self.foreign -= block.foreign
        self._withdraw(block)
        self.orphans.discard(key)
        for child in self._children.get(key, ()):
            self.orphans.add(child, proved=not reachable)
        if block.parent == NO_PARENT:
            self.heads.take(name_of(key))
            self.told_heads.take(name_of(key))
            return None
        siblings = self._children[block.parent]
        siblings.discard(key)
        if siblings:
            return None
        del self._children[block.parent]
        return self.blocks.get(block.parent)

    def place(self, chain: Iterable[bytes]) -> None:
        """A request's whole chain in order: says where the blocks of it that are here belong."""
        head = b""
        for position, key in enumerate(chain):
            if begins_group(position):
                head = key
            block = self.blocks.get(key)
            if block is not None and block.head != head:
                self._put(block, position, head)
                self._place_below(key)

    def _adjoining(self, block: Block) -> int:
        """How many pairs of parent and child, the child in the next slot, the block is part of."""
        parent = self.blocks.get(block.parent)
        pairs = int(parent is not None and parent.slot + 1 == block.slot)
        for child in self._children.get(block.key, ()):
            below = self.blocks.get(child)
            if below is not None and below.slot == block.slot + 1:
                return pairs + 1
        return pairs

    def _place_below(self, key: bytes) -> None:
        """Gives the descendants of a block that have no place yet theirs; each block gets one once."""
        waiting = [key]
        while waiting:
            parent = waiting.pop()
            for child in self._children.get(parent, ()):
                if self._put_below(self.blocks[parent], self.blocks[child]):
                    waiting.append(child)

    def _put_below(self, parent: Block, block: Block) -> bool:
        """Gives a block its place behind its parent, where that has one and the block none."""
        if parent.position == UNKNOWN or block.position != UNKNOWN:
            return False
        position = parent.position + 1
        self._put(block, position, block.key if begins_group(position) else parent.head)
        return True

    def _put(self, block: Block, position: int, head: bytes) -> None:
        self._withdraw(block)
        block.position, block.head = position, head
        if position < self.told_depth and self.may_tell(block.key):
            self.feed.add(Change(block.key, head, held=True))

    def _withdraw(self, block: Block) -> None:
        if block.head and self.may_tell(block.key):
            self.feed.add(Change(block.key, block.head, held=False))
