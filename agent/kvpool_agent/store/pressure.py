"""Who makes room: two classes of blocks with a budget each (kvpool_agent.policy.classes), and in each the one that the
policy names. Orphans, which no request can reach, go before both. Used under the arena's lock.
"""

from collections.abc import Callable

from kvpool_agent.policy.classes import owned_first
from kvpool_agent.policy.eviction import Policy
from kvpool_agent.store.index import Block


class Pressure:
    """`owned_percent`: of the slots that may be in use, the part that replica copies can't take from owned blocks; the
    rest is what owned blocks can't take from replica copies."""

    def __init__(self, owned_percent: int, policy: Callable[[], Policy[bytes]]) -> None:
        self._owned_percent = owned_percent
        self._owned, self._replicas = policy(), policy()

    def _of(self, block: Block) -> Policy[bytes]:
        return self._replicas if block.foreign and not block.adopted else self._owned

    def come(self, block: Block) -> None:
        self._of(block).come(block.key)

    def adopt(self, block: Block) -> None:
        """From now on the block is owned; it is to be settled."""
        if block.foreign and not block.adopted:
            self.go(block, evicted=False)
            block.adopted = True
            self.come(block)

    def use(self, block: Block) -> None:
        self._of(block).use(block.key)

    def touch(self, block: Block) -> None:
        self._of(block).touch(block.key)

    def settle(self, block: Block, *, bound: bool) -> None:
        """Whether the block is leased or something hangs on it."""
        if bound:
            self._of(block).bind(block.key)
        else:
            self._of(block).free(block.key)

    def go(self, block: Block, *, evicted: bool) -> None:
        self._of(block).go(block.key, evicted=evicted)

    def next(self, capacity: int) -> bytes | None:
        """The block that goes next, None when all are bound. capacity: slots that may be in use."""
        owned = owned_first(len(self._owned), len(self._replicas), capacity, self._owned_percent)
        first, second = (self._owned, self._replicas) if owned else (self._replicas, self._owned)
        victim = first.next()
        return victim if victim is not None else second.next()
