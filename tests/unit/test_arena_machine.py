"""The arena against a model of its rules: hypothesis draws histories of writers, leases, judgements and spills.

The model is written down without any cleverness. Held after every step: the limit, who may be evicted and in which
order of classes, every slot in one place, and every figure that the arena tells.
"""

import collections

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvpool_agent.store.arena import Arena, Held

BLOCKS = 24
SLOTS = 6
# a forest: the parent of each block, 0 for none
PARENT = {n: (0 if n % 6 == 1 else n - 1 - (n % 3 == 0)) for n in range(1, BLOCKS + 1)}
SPILLED_AT_ONCE = 2
numbers = st.integers(1, BLOCKS)
SEEN: collections.Counter[str] = collections.Counter()  # evictions by kind, and those that were not to be


def key(n: int) -> bytes:
    return n.to_bytes(16, "big") if n else b""


def number(block: bytes) -> int:
    return int.from_bytes(block, "big")


class ArenaMachine(RuleBasedStateMachine):
    @initialize(eviction=st.sampled_from(["LRU", "GDSF", "S3FIFO"]), percent=st.sampled_from([0, 40, 70, 100]))
    def begin(self, eviction: str, percent: int) -> None:
        self.arena = Arena(SLOTS, eviction=eviction, owned_percent=percent)
        self.eviction, self.percent, self.now = eviction, percent, 0.0
        self.foreign: dict[int, bool] = {}  # blocks here
        self.last_use: dict[int, int] = {}
        self.clock = 0
        self.reserved: list[int] = []
        self.leases: dict[int, tuple[list[int], float]] = {}
        self.doomed: list[tuple[int, set[int]]] = []  # dropped blocks and the leases that hold their slots
        self.judged: set[int] = set()  # orphans whose parent nobody holds
        self.spilled: list[Held] = []
        self.evicted = 0

    # -- the model -----------------------------------------------------------------------------------

    def leaves(self) -> set[int]:
        return set(self.foreign) - {PARENT[n] for n in self.foreign}

    def leased(self, n: int) -> bool:
        return any(n in held for held, _ in self.leases.values())

    def free_for_writers(self) -> int:
        used = len(self.foreign) + len(self.reserved) + len(self.doomed) + len(self.spilled)
        return min(SLOTS, self.arena.capacity) - used

    def candidates(self) -> set[int]:
        """Who may go next, by the rules."""
        orphans = {n for n in self.judged if not self.leased(n)}
        if orphans:
            return orphans
        leaves = {n for n in self.leaves() if not self.leased(n)}
        replicas, owned = ({n for n in leaves if self.foreign[n] is kind} for kind in (True, False))
        budget = self.arena.capacity * self.percent // 100
        held = sum(self.foreign.values())
        borrowed = len(self.foreign) - held > budget and held <= self.arena.capacity - budget
        found = (owned or replicas) if borrowed else (replicas or owned)
        if self.eviction == "LRU" and found:
            return {min(found, key=self.last_use.__getitem__)}
        return found

    def forget(self, n: int, *, unreachable: bool) -> None:
        del self.foreign[n]
        self.judged.discard(n)
        if unreachable:
            self.judged |= {child for child in self.foreign if PARENT[child] == n}

    def expire(self) -> None:
        for lease in [lease for lease, (_, end) in self.leases.items() if end <= self.now]:
            self.end(lease)

    def end(self, lease: int) -> None:
        self.leases.pop(lease, None)
        for _, holders in self.doomed:
            holders.discard(lease)
        self.doomed = [(n, holders) for n, holders in self.doomed if holders]

    def touch(self, n: int) -> None:
        self.clock += 1
        self.last_use[n] = self.clock

    def take(self, held: Held) -> bool:
        assert not held.foreign
        if len(self.spilled) >= SPILLED_AT_ONCE:
            return False
        self.spilled.append(held)
        return True

    # -- what happens --------------------------------------------------------------------------------

    @rule(chosen=st.lists(st.tuples(numbers, st.booleans()), min_size=3, max_size=8))
    def store(self, chosen: list[tuple[int, bool]]) -> None:
        """Writers that come one after another."""
        for n, foreign in chosen:
            self.reserve()
            if self.reserved:
                self.commit(n, foreign)

    @rule(seconds=st.floats(0.1, 3.0))
    def time_goes_on(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: len(self.reserved) < 2)
    @rule()
    def begin_to_write(self) -> None:
        self.reserve()

    def reserve(self) -> None:
        self.expire()
        spilled, leaves = len(self.spilled), self.leaves()
        before, allowed, room = set(self.foreign), self.candidates(), self.free_for_writers()
        slots = self.arena.reserve(1, self.now)
        gone = before - set(map(number, self.arena.keys()))
        if room > 0:
            assert (len(slots), gone) == (1, set())
        elif len(self.spilled) == spilled and room == 0:
            assert (len(slots), len(gone)) == ((1, 1) if allowed else (0, 0))
            assert gone <= allowed
        SEEN["spilled"] += len(self.spilled) - spilled
        SEEN["leased"] += room <= 0 and any(self.leased(n) for n in leaves)
        taken = {number(each.key) for each in self.spilled[spilled:]}
        assert taken <= gone and not taken & self.judged
        for n in gone:
            unreachable = n in self.judged
            kind = "orphan" if unreachable else "replica" if self.foreign[n] else "owned"
            SEEN[kind] += 1
            self.forget(n, unreachable=unreachable)
        self.evicted += len(gone)
        assert not set(slots) & {each.slot for each in self.spilled}
        self.reserved += slots

    def commit(self, n: int, foreign: bool) -> None:
        new = n not in self.foreign
        assert self.arena.commit(key(n), key(PARENT[n]), self.reserved.pop(), b"tag", foreign=foreign) is new
        if new:
            self.foreign[n] = foreign
            self.touch(n)
            self.judged -= {child for child in self.foreign if PARENT[child] == n}

    @precondition(lambda self: self.reserved)
    @rule()
    def give_back(self) -> None:
        self.arena.give_back([self.reserved.pop()])

    @rule(chosen=st.lists(numbers, min_size=1, max_size=4), seconds=st.sampled_from([0.5, 2.0, 6.0]))
    def lease(self, chosen: list[int], seconds: float) -> None:
        self.expire()
        lease, found = self.arena.lease([key(n) for n in chosen], self.now, seconds)
        assert [each is not None for each in found] == [n in self.foreign for n in chosen]
        here = [n for n in chosen if n in self.foreign]
        for n in here:
            self.touch(n)
        self.leases[lease] = (here, self.now + seconds)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.leases)))
        self.arena.release(lease)
        self.end(lease)

    @rule(chosen=st.lists(numbers, max_size=6))
    def use(self, chosen: list[int]) -> None:
        self.arena.use([key(n) for n in chosen])
        for n in chosen:
            if n in self.foreign:
                self.touch(n)

    @rule(n=numbers)
    def drop(self, n: int) -> None:
        self.arena.drop(key(n))
        if n in self.foreign:
            holders = {lease for lease, (held, _) in self.leases.items() if n in held}
            for lease in holders:
                held, end = self.leases[lease]
                self.leases[lease] = ([each for each in held if each != n], end)
            if holders:
                self.doomed.append((n, holders))
            self.forget(n, unreachable=False)

    @rule(chosen=st.lists(numbers, min_size=4, max_size=BLOCKS), elsewhere=st.booleans())
    def judge(self, chosen: list[int], elsewhere: bool) -> None:
        for n in chosen:
            self.judge_one(n, elsewhere)

    def judge_one(self, n: int, elsewhere: bool) -> None:
        self.arena.judge_orphan(key(n), held_elsewhere=elsewhere)
        if n in self.foreign and PARENT[n] and PARENT[n] not in self.foreign:
            (self.judged.discard if elsewhere else self.judged.add)(n)

    @rule(capacity=st.integers(SLOTS - 3, SLOTS))
    def resize(self, capacity: int) -> None:
        self.arena.capacity = capacity

    @rule(on=st.booleans())
    def spill(self, on: bool) -> None:
        self.arena.spill = self.take if on else None

    @precondition(lambda self: self.spilled)
    @rule()
    def spilled_one(self) -> None:
        self.arena.give_back([self.spilled.pop().slot])

    # -- what holds ----------------------------------------------------------------------------------

    @invariant()
    def the_arena_tells_what_is(self) -> None:
        if not hasattr(self, "arena"):
            return
        arena = self.arena
        self.expire()
        arena.renew(0, self.now, 0.0)  # of no lease: those that are over end
        assert set(map(number, arena.keys())) == set(self.foreign)
        assert arena.foreign == sum(self.foreign.values())
        assert arena.evicted == self.evicted
        assert arena.orphan_blocks == len(self.judged)
        assert {number(each) for each, _ in arena.orphans()} == {
            n for n in self.foreign if PARENT[n] and PARENT[n] not in self.foreign
        }
        doomed = len(self.doomed)
        assert arena.used_slots == len(self.foreign) + len(self.reserved) + doomed + len(self.spilled) <= SLOTS
        assert arena.reserved_slots == len(self.reserved) + len(self.spilled)
        assert arena.leased_blocks == len({n for held, _ in self.leases.values() for n in held}) + doomed
        lease, found = arena.lease([key(n) for n in sorted(self.foreign)], self.now, 0.0)
        arena.release(lease)
        for n in sorted(self.foreign):
            self.touch(n)
        slots = {n: each.slot for n, each in zip(sorted(self.foreign), found, strict=True) if each is not None}
        everywhere = [*slots.values(), *self.reserved, *(each.slot for each in self.spilled)]
        assert len(everywhere) == len(set(everywhere))
        assert arena.adjoining_blocks == sum(slots[n] == slots.get(PARENT[n], -2) + 1 for n in slots)


def test_an_arena_in_any_order_of_events() -> None:
    SEEN.clear()
    run_state_machine_as_test(
        ArenaMachine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert all(SEEN[kind] for kind in ("orphan", "replica", "owned", "spilled", "leased")), SEEN
