"""How far apart a block's uses lie: how many other blocks were used in between, in powers of two.

The distance of a use is the number of distinct blocks used since the same block's last use, itself counted: the
smallest LRU cache of single blocks that would still have had it (Mattson et al., IBM Systems Journal 1970). Counted in
a Fenwick tree over the order of last uses, so a use costs the logarithm of the keys that are followed.

Only samples of the keys are followed, those whose hash is below a bound, and their distances are as much larger as the
sample is smaller (Waldspurger et al., Efficient MRC Construction with SHARDS, FAST 2015): a denser one for distances up
to the arena's size, and a thinner one up to 16 times that; beyond, a use counts as a first one. The rates are fixed by
the arena's size, so memory and accuracy stay as they are however long the agent runs. What the denser sample has too
many or too few uses of is taken to be of keys that every request contains (the paper's SHARDS-adj): their distance is
the length of a request.
"""

from collections.abc import Sequence

FOLLOWED_KEYS = 8192  # by each of both samples; about 2 MiB with its tree
REACH = 16
_HASHED = 1 << 32


class ReuseDistances:
    """`capacity`: of the arena, in blocks. `asked`: prompt blocks since the start."""

    def __init__(self, capacity: int, followed: int = FOLLOWED_KEYS) -> None:
        """followed: keys of either sample at most."""
        capacity = max(1, capacity)
        self._near, self._far = _Sample(capacity, followed), _Sample(REACH * capacity, followed)
        self._last_near = capacity.bit_length() - 1
        self.asked = self._requests = 0

    def __len__(self) -> int:
        """Keys that are followed now."""
        return len(self._near) + len(self._far)

    def request(self, chain: Sequence[bytes], prompt_blocks: int) -> None:
        """One request's whole chain, the first `prompt_blocks` of it its prompt."""
        self.asked += min(len(chain), prompt_blocks)
        self._requests += 1
        for sample in (self._near, self._far):
            sample.request(chain, prompt_blocks)

    def histogram(self) -> list[int]:
        """Estimated uses by distance: the i-th counts those above 2^(i-1) and up to 2^i blocks. The rest of `asked` are
        first uses, or beyond what is followed."""
        found, far = self._near.estimates()[: self._last_near + 1], self._far.estimates()[self._last_near + 1 :]
        more = self.asked - self._near.seen
        for i in range(_power(max(1, self.asked // max(1, self._requests))), len(found)):
            more, found[i] = min(0, found[i] + more), max(0, found[i] + more)
        return [*found, *([0] * (self._last_near + 1 - len(found)) if far else ()), *far]


def _power(distance: int) -> int:
    return (distance - 1).bit_length()


class _Sample:
    """The keys of a sample, in the order of their last use; `reach`: the blocks whose uses they lie among."""

    def __init__(self, reach: int, followed: int) -> None:
        self._rate = min(1.0, followed / reach)
        self._bound, self._followed = int(self._rate * _HASHED), min(followed, reach)
        self._last: dict[bytes, int] = {}  # the time of its last use, earliest first
        self._times = 2 * self._followed
        self._tree, self._now = [0] * (self._times + 1), 0
        self._counts: list[int] = []
        self._sampled = 0

    def __len__(self) -> int:
        return len(self._last)

    @property
    def seen(self) -> int:
        """Prompt blocks, as the sample has it."""
        return round(self._sampled / self._rate)

    def estimates(self) -> list[int]:
        """Uses of prompt blocks by power of two of their distance."""
        return [round(count / self._rate) for count in self._counts]

    def request(self, chain: Sequence[bytes], prompt_blocks: int) -> None:
        bound = self._bound
        for i, key in enumerate(chain):
            if int.from_bytes(key[:4], "big") < bound:
                distance = self._use(key)
                if i < prompt_blocks:
                    self._sampled += 1
                    if distance:
                        self._count(max(1, round(distance / self._rate)))

    def _count(self, distance: int) -> None:
        power = _power(distance)
        self._counts += [0] * (power + 1 - len(self._counts))
        self._counts[power] += 1

    def _use(self, key: bytes) -> int:
        """The distance among the followed keys, 0 for a first use."""
        distance, last = 0, self._last.pop(key, None)
        if last is not None:
            distance = len(self._last) + 1 - self._before(last)
            self._add(last, -1)
        elif len(self._last) >= self._followed:
            oldest = next(iter(self._last))
            self._add(self._last.pop(oldest), -1)
        if self._now == self._times:
            self._renumber()
        self._now += 1
        self._last[key] = self._now
        self._add(self._now, 1)
        return distance

    def _renumber(self) -> None:
        """Gives the followed keys the first times, in their order: a step for each of them, once in as many uses."""
        self._tree, self._now = [0] * (self._times + 1), 0
        for key in self._last:
            self._now += 1
            self._last[key] = self._now
            self._add(self._now, 1)

    def _add(self, time: int, amount: int) -> None:
        while time <= self._times:
            self._tree[time] += amount
            time += time & -time

    def _before(self, time: int) -> int:
        """Keys whose last use lies before this time."""
        time, found = time - 1, 0
        while time:
            found += self._tree[time]
            time -= time & -time
        return found
