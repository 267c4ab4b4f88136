"""Who makes room: two classes of blocks with a budget each, and in each the one that the policy names.

Owned blocks were computed by the engine beside this agent, or taken over from a member that has left; replica copies
came from other members, which may still hold them. Either class may use what the other leaves free. Under pressure the
class goes first that has more than its budget; where none has, replica copies go before owned ones. Orphans, which no
request can reach, go before both. Used under the arena's lock.
"""

from collections.abc import Callable

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
        budget = capacity * self._owned_percent // 100
        borrowed = len(self._owned) > budget and len(self._replicas) <= capacity - budget
        first, second = (self._owned, self._replicas) if borrowed else (self._replicas, self._owned)
        victim = first.next()
        return victim if victim is not None else second.next()
