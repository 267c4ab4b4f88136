"""What an arena of this size, and one of twice the size, would have had: caches of keys that follow the same requests.

Only a sample of the keys is followed, in caches that are smaller by as much: keys are hashes, so those below a bound
are a fair sample of all, and a chain without the others is a chain still (Waldspurger et al., SHARDS, FAST 2015, and
miniature simulation, USENIX ATC 2017). So memory stays bounded whatever the arena's size, and the policy is the
arena's own. The one key that every request contains is in the sample or not: requests that the sample has too few or
too many of are taken to be for such keys, and found (the paper's SHARDS-adj).
"""

import itertools
from collections.abc import Sequence

from kvpool_agent.policy.eviction import policy_of
from kvpool_agent.policy.keycache import KeyCache

FOLLOWED_KEYS = 8192  # in the larger cache at most; about 3 MiB for both
_HASHED = 1 << 32


class Ghost:
    """`capacity` in blocks. In prompt blocks since the start: `asked`, and estimates of those among them that arenas of
    that and of twice the capacity would have had."""

    def __init__(self, capacity: int, eviction: str) -> None:
        rate = min(1.0, FOLLOWED_KEYS / (2 * max(1, capacity)))
        self._bound = int(rate * _HASHED)
        self._one = KeyCache[bytes](max(1, round(capacity * rate)), policy_of(eviction))
        self._two = KeyCache[bytes](max(1, round(2 * capacity * rate)), policy_of(eviction))
        self._rate = rate
        self.asked = self._sampled = self._hits = self._double_hits = 0

    @property
    def hits(self) -> int:
        return self._estimate(self._hits)

    @property
    def double_hits(self) -> int:
        return self._estimate(self._double_hits)

    def _estimate(self, hits: int) -> int:
        return min(self.asked, max(0, round(self.asked - (self._sampled - hits) / self._rate)))

    def request(self, chain: Sequence[bytes], prompt_blocks: int) -> None:
        """One request's whole chain, the first `prompt_blocks` of it its prompt."""
        bound = self._bound
        sampled = [int.from_bytes(key[:4], "big") < bound for key in chain]
        followed = list(itertools.compress(chain, sampled))
        asked = sum(sampled[:prompt_blocks])
        self.asked += min(len(chain), prompt_blocks)
        self._sampled += asked
        self._hits += min(asked, self._one.request(followed))
        self._double_hits += min(asked, self._two.request(followed))
