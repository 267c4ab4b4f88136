"""Which replica a request goes to: the three ways in which routers decide, and what they remember.

*round-robin* knows nothing of requests. *sticky* keeps a session at its replica; where a trace names no sessions, a
request belongs to the session that it continues, which is the one whose last prompt it contains to the end.
*prefix-affine* sends a request to where most of its prefix was last served. Both begin new sessions, and requests that
share less than a tenth, at the least loaded replica, and so does affinity whenever its choice is overloaded, as routers
do. What is remembered is bounded; what was not used for longest is forgotten.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol

from kvpool_lab.sample import COMMON, Followed

ROUND_ROBIN, STICKY, PREFIX_AFFINE = "round-robin", "sticky", "prefix-affine"
ROUTINGS = (ROUND_ROBIN, STICKY, PREFIX_AFFINE)
REMEMBERED = 100_000
SHARED_PART = 0.1
OVERLOADED = 1.5  # of the mean load
LOAD_SECONDS = 60.0  # in which load fades to a third


class Router(Protocol):
    def route(self, followed: Followed, /) -> int:
        """The replica's number."""


class _Load:
    """Prompt tokens that each replica was given lately."""

    def __init__(self, replicas: int) -> None:
        self.tokens = [0.0] * replicas
        self._at = -math.inf

    def given(self, replica: int, tokens: int, at: float) -> None:
        faded = math.exp(-max(0.0, at - self._at) / LOAD_SECONDS) if self._at > -math.inf else 0.0
        self.tokens = [each * faded for each in self.tokens]
        self.tokens[replica] += tokens
        self._at = max(self._at, at)

    def least(self) -> int:
        return min(range(len(self.tokens)), key=self.tokens.__getitem__)

    def overloaded(self, replica: int) -> bool:
        return self.tokens[replica] > OVERLOADED * sum(self.tokens) / len(self.tokens)


class _Remembered:
    def __init__(self) -> None:
        self._replicas: OrderedDict[Hashable, int] = OrderedDict()

    def get(self, name: Hashable) -> int | None:
        return self._replicas.get(name)

    def put(self, name: Hashable, replica: int) -> None:
        self._replicas[name] = replica
        self._replicas.move_to_end(name)
        if len(self._replicas) > REMEMBERED:
            self._replicas.popitem(last=False)


class RoundRobin:
    def __init__(self, replicas: int) -> None:
        self._replicas, self._next = replicas, 0

    def route(self, _followed: Followed, /) -> int:
        chosen, self._next = self._next, (self._next + 1) % self._replicas
        return chosen


class Sticky:
    def __init__(self, replicas: int) -> None:
        self._load, self._known = _Load(replicas), _Remembered()

    def route(self, followed: Followed, /) -> int:
        request = followed.request
        names: list[Hashable] = [request.session] if request.session else _own(followed)
        found = next((each for name in names if (each := self._known.get(name)) is not None), None)
        replica = self._load.least() if found is None else found
        # the last block may not be full, and then it is not in the prompt that continues this one
        for name in names[:2]:
            self._known.put(name, replica)
        self._load.given(replica, request.tokens, request.at)
        return replica


def _own(followed: Followed) -> list[Hashable]:
    """Blocks that say which session this is, the last one first; those that all sessions have say nothing. Of the whole
    prompt: the last one that is followed may be one that many sessions have."""
    common = {block for block, group in zip(followed.blocks, followed.groups, strict=True) if group == COMMON}
    return [block for block in reversed(followed.request.blocks) if block not in common]


class PrefixAffine:
    def __init__(self, replicas: int) -> None:
        self._load, self._known = _Load(replicas), _Remembered()

    def route(self, followed: Followed, /) -> int:
        blocks, request = followed.blocks, followed.request
        replica, shared = None, 0
        for place in range(len(blocks) - 1, -1, -1):
            replica = self._known.get(blocks[place])
            if replica is not None:
                shared = followed.ends[place]
                break
        if replica is None or shared < SHARED_PART * request.tokens or self._load.overloaded(replica):
            replica = self._load.least()
        for block in blocks:
            self._known.put(block, replica)
        self._load.given(replica, request.tokens, request.at)
        return replica


def router(name: str, replicas: int) -> Router:
    kinds: dict[str, Callable[[int], Router]] = {
        ROUND_ROBIN: RoundRobin,
        STICKY: Sticky,
        PREFIX_AFFINE: PrefixAffine,
    }
    return kinds[name](replicas)
