"""A cache of keys alone under the arena's rules: what an arena of another size would have had.

Requests pass whole chains. A hit ends at the first block that is not held; the rest is taken in as the arena takes it
in, each block after its parent, room made by the policy from what no held block hangs on, never from the request's own
chain. A chain that does not fit is held as far as it goes.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from kvpool_agent.policy.eviction import Policy

K = TypeVar("K", bound=Hashable)


class KeyCache(Generic[K]):
    """`capacity` in blocks."""

    def __init__(self, capacity: int, policy: Policy[K]) -> None:
        self.capacity = capacity
        self.evicted = 0
        self._policy = policy
        self._held: dict[K, tuple[K | None, list[int]]] = {}  # parent, number of children held

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: K) -> bool:
        return key in self._held

    def run(self, chain: Sequence[K]) -> int:
        """How many of the blocks are held, from the first on without a gap."""
        return next((place for place, key in enumerate(chain) if key not in self._held), len(chain))

    def touch(self, keys: Iterable[K]) -> None:
        """Another member has read these blocks, which are held."""
        for key in keys:
            self._policy.touch(key)

    def request(self, chain: Sequence[K]) -> int:
        """One request's blocks from the beginning of its prompt: how many of them are held, up to the first gap; then
        as many are held as fit."""
        held, policy = self._held, self._policy
        hits = 0
        for key in chain:
            if key not in held:
                break
            policy.use(key)
            hits += 1
        if hits == len(chain):
            return hits
        last = chain[hits - 1] if hits else None
        if last is not None:
            policy.bind(last)
        for key in chain[hits:]:
            if len(held) >= self.capacity and not self._evict_one(last):
                break
            held[key] = (last, [0])
            if last is not None:
                held[last][1][0] += 1
            policy.come(key)
            policy.use(key)
            last = key
        if last is not None and not held[last][1][0]:
            policy.free(last)
        return hits

    def _evict_one(self, kept: K | None) -> bool:
        victim = self._policy.next()
        if victim is None:
            return False
        parent, _ = self._held.pop(victim)
        self._policy.go(victim, evicted=True)
        self.evicted += 1
        if parent is not None:
            children = self._held[parent][1]
            children[0] -= 1
            if not children[0] and parent != kept:
                self._policy.free(parent)
        return True
