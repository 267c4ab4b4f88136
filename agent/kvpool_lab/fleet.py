"""Replicas that serve a trace together: what each one's engine and arena hold, and what they load from each other.

A replica has the engine's own cache, which is LRU, and an arena under the pool's policy with its two classes, owned
blocks and copies. A request takes what its engine has, then what its own arena has, then what other arenas have as
long as the chain goes on, if loading that pays; the rest is computed. What it loads becomes a copy, what it computes an
owned block. All of it in the blocks that are followed (kvpool_lab.sample), by the agents' own policies.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kvpool_agent.policy.classes import owned_first
from kvpool_agent.policy.eviction import Policy, policy_of
from kvpool_agent.policy.keycache import KeyCache
from kvpool_contract.config import DEFAULT_OWNED_PERCENT, LRU
from kvpool_lab.costs import Costs
from kvpool_lab.sample import Followed, Sample, Sum

WINDOW_MINUTES = 15


@dataclass(frozen=True)
class Hardware:
    """Of one replica, in blocks: the engine's own cache (0: none), the arena. `costs`: None where they are not known,
    and then everything that others hold is loaded."""

    replicas: int
    engine_blocks: int
    arena_blocks: int
    policy: str
    costs: Costs | None = None
    owned_percent: int = DEFAULT_OWNED_PERCENT


@dataclass
class Tally:
    """Of some requests: prompt tokens by where they came from, over the followed blocks, and seconds. `refused`: what
    others held and was computed sooner. `cold_seconds`: to compute all of it."""

    sample: Sample
    requests: int = 0
    tokens: int = 0
    loads: int = 0
    cold_seconds: float = 0.0
    prefill_seconds: float = 0.0
    load_seconds: float = 0.0
    asked: Sum = field(default_factory=Sum)
    arena: Sum = field(default_factory=Sum)
    far: Sum = field(default_factory=Sum)
    refused: Sum = field(default_factory=Sum)
    missed: Sum = field(default_factory=Sum)

    def of(self, part: Sum) -> float:
        """Tokens of one of the sums, over all blocks."""
        return part.of_all(self.sample, self.asked, self.tokens)

    @property
    def near(self) -> float:
        """Tokens that the replica had itself, in its engine or its arena."""
        return max(0.0, self.tokens - self.of(self.far) - self.of(self.missed))

    def rate(self, tokens: float) -> float:
        return tokens / self.tokens if self.tokens else 0.0

    @property
    def spent_seconds(self) -> float:
        """What all first tokens waited for: computing and loading."""
        return self.prefill_seconds + self.load_seconds


@dataclass
class Flows:
    """Tokens of followed blocks a minute, since the trace began; what is asked for is scaled to `total` tokens."""

    minutes: dict[int, float] = field(default_factory=dict)

    def add(self, at: float, tokens: float) -> None:
        minute = int(at // 60)
        self.minutes[minute] = self.minutes.get(minute, 0.0) + tokens

    def worst(self, total: float, seconds: float) -> float:
        """Tokens a second in the fullest quarter of an hour."""
        if seconds <= WINDOW_MINUTES * 60 or not self.minutes:
            return total / seconds if seconds > 0 else 0.0
        first, last = min(self.minutes), max(self.minutes)
        sums, window = 0.0, 0.0
        for minute in range(first, last + 1):
            window += self.minutes.get(minute, 0.0) - self.minutes.get(minute - WINDOW_MINUTES, 0.0)
            sums = max(sums, window)
        return sums / (WINDOW_MINUTES * 60) * total / sum(self.minutes.values())


class _Classes(Policy[int]):
    """An arena's two classes as one policy; `expect` names the blocks that come as copies."""

    def __init__(self, policy: str, capacity: int, owned_percent: int) -> None:
        self._owned: Policy[Any] = policy_of(policy)
        self._copies: Policy[Any] = policy_of(policy)
        self._capacity, self._percent = capacity, owned_percent
        self._foreign: set[int] = set()
        self._expected: set[int] = set()

    def expect(self, copies: Iterable[int]) -> None:
        self._expected = set(copies)

    def _of(self, key: int) -> Policy[Any]:
        return self._copies if key in self._foreign else self._owned

    def __len__(self) -> int:
        return len(self._owned) + len(self._copies)

    def come(self, key: int) -> None:
        if key in self._expected:
            self._foreign.add(key)
        self._of(key).come(key)

    def use(self, key: int) -> None:
        self._of(key).use(key)

    def touch(self, key: int) -> None:
        self._of(key).touch(key)

    def bind(self, key: int) -> None:
        self._of(key).bind(key)

    def free(self, key: int) -> None:
        self._of(key).free(key)

    def go(self, key: int, *, evicted: bool) -> None:
        self._of(key).go(key, evicted=evicted)
        self._foreign.discard(key)

    def next(self) -> int | None:
        owned = owned_first(len(self._owned), len(self._copies), self._capacity, self._percent)
        first, second = (self._owned, self._copies) if owned else (self._copies, self._owned)
        victim = first.next()
        found: int | None = second.next() if victim is None else victim
        return found


class _Replica:
    def __init__(self, hardware: Hardware, sample: Sample) -> None:
        arena = sample.blocks(hardware.arena_blocks)
        self.classes = _Classes(hardware.policy, arena, hardware.owned_percent)
        self.arena = KeyCache[int](arena, self.classes)
        self.engine = (
            KeyCache[int](sample.blocks(hardware.engine_blocks), policy_of(LRU)) if hardware.engine_blocks else None
        )


class Fleet:
    """`sharing`: whether replicas load from each other."""

    def __init__(self, hardware: Hardware, sample: Sample, *, sharing: bool, began: float = 0.0) -> None:
        self.total, self.kinds = Tally(sample), dict[str, Tally]()
        self.read, self.written = Flows(), Flows()
        self.given = [0] * hardware.replicas  # prompt tokens by replica
        self._hardware, self._sample, self._sharing, self._began = hardware, sample, sharing, began
        self._replicas = [_Replica(hardware, sample) for _ in range(hardware.replicas)]

    def request(self, number: int, followed: Followed, *, counts: bool = True) -> None:
        """One request at a replica."""
        own, blocks = self._replicas[number], followed.blocks
        in_engine = own.engine.request(blocks) if own.engine is not None else 0
        near = max(in_engine, own.arena.run(blocks))
        held = self._far(number, blocks, near) if self._sharing else near
        far = held if self._pays(followed, near, held) else near
        own.classes.expect(blocks[near:far])
        own.arena.request(blocks)
        self.given[number] += followed.request.tokens
        if counts:
            for tally in (self.total, self.kinds.setdefault(followed.request.kind, Tally(self._sample))):
                self._count(tally, followed, (in_engine, near, far, held))
            at = followed.request.at - self._began
            if far > near:
                self.read.add(at, sum(followed.sizes[near:far]))
            self.written.add(at, sum(followed.sizes[far:]))

    def _far(self, number: int, blocks: list[int], near: int) -> int:
        """Where the run of blocks ends that one arena or another holds; those that are read are fresh there."""
        others = [each.arena for i, each in enumerate(self._replicas) if i != number]
        for place in range(near, len(blocks)):
            holder = next((arena for arena in others if blocks[place] in arena), None)
            if holder is None:
                return place
            holder.touch(blocks[place : place + 1])
        return len(blocks)

    def _pays(self, followed: Followed, near: int, held: int) -> bool:
        costs = self._hardware.costs
        if costs is None or held == near:
            return True
        after = self._end(followed, near)
        return costs.pays(self._end(followed, held) - after, after)

    def _end(self, followed: Followed, run: int) -> float:
        """Tokens of the prompt up to where a run of followed blocks ends; the break lies between two of them."""
        if run == len(followed.blocks):
            return followed.request.tokens
        last = followed.ends[run - 1] if run else 0
        gap = (1 / self._sample.rate - 1) * followed.request.block_tokens
        return max(last, followed.ends[run] - followed.sizes[run] - gap)

    def _count(self, tally: Tally, followed: Followed, runs: tuple[int, int, int, int]) -> None:
        """runs: up to where the engine has it, then the replica, then what was loaded goes, and what others hold."""
        in_engine, near, far, held = runs
        tokens = followed.request.tokens
        tally.requests += 1
        tally.tokens += tokens
        tally.loads += far > near
        tally.asked.add(followed, 0, len(followed.blocks))
        tally.arena.add(followed, in_engine, near)
        tally.far.add(followed, near, far)
        tally.refused.add(followed, far, held)
        tally.missed.add(followed, far, len(followed.blocks))
        costs = self._hardware.costs
        if costs is not None:
            end, begin = self._end(followed, far), self._end(followed, near)
            tally.cold_seconds += costs.curve.seconds(tokens)
            tally.prefill_seconds += costs.curve.seconds(tokens - end, end)
            if far > near:
                tally.load_seconds += costs.path.seconds((end - begin) * costs.bytes_per_token)
