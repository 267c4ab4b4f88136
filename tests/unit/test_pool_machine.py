"""Any order of stores, announcements, lookups, loads, leases, evictions, leaving and coming back, among real members in
one process: no wrong byte, no lease that stays, no limit exceeded, and every block asked for is loaded or has a reason.
"""

import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from local_member import FORMAT, WAIT, LocalMember, Time, chain, until

from kvpool_agent.directory import locate
from kvpool_agent.directory import members as view
from kvpool_agent.directory.entries import SHARES
from kvpool_agent.policy.homes import SETTLE_SECONDS

MEMBERS, SLOTS, ENTRIES = 4, 40, 8 * 24
LOAD_SECONDS = 5.0
# three chains that share a beginning and two that don't; one with two groups
TRUNK = chain("trunk", 20)
CHAINS = [TRUNK, [*TRUNK[:18], *chain("branch", 6)], [*TRUNK[:3], *chain("twig", 5)], chain("a", 12), chain("b", 12)]

SEEN: Counter[str] = Counter()  # blocks loaded, and missed by reason, in all runs
a_member = st.integers(0, MEMBERS - 1)
a_chain = st.sampled_from(CHAINS)
a_length = st.sampled_from([24, 24, 24, 20, 17, 6, 1])


class Pool(RuleBasedStateMachine):
    """Members by number; one that has left is None."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.seeds = Path(self.folder.name) / "members"
        self.seeds.write_text("")
        self.members: list[LocalMember | None] = [None] * MEMBERS
        self.leases: list[tuple[LocalMember, int]] = []
        for n in range(MEMBERS):
            self.come(n)
        self.know_each_other()

    def come(self, n: int) -> None:
        """announcements and looks for orphans are steps of the machine, not of their threads"""
        self.members[n] = LocalMember(
            f"uid-{n}", self.seeds, SLOTS, load_seconds=LOAD_SECONDS, max_entries=ENTRIES, announces=False
        ).start()

    def here(self, n: int) -> LocalMember | None:
        return self.members[n]

    # -- what members do -----------------------------------------------------------------------------

    @rule(n=a_member, keys=a_chain, length=a_length, start=st.sampled_from([0, 0, 0, 5, 17]))
    def store(self, n: int, keys: list[bytes], length: int, start: int) -> None:
        """Also in the middle of a chain, as an engine does that has the beginning itself."""
        member = self.here(n)
        if member is not None:
            member.store(keys[:length], start)
            member.slab.arena.place(keys[:length])

    @rule(who=st.sets(a_member, min_size=1))
    def announce(self, who: set[int]) -> None:
        for member in (self.here(n) for n in who):
            if member is not None:
                member.announcer.look(member.slab)

    @rule(n=a_member, keys=a_chain, length=a_length)
    def lookup(self, n: int, keys: list[bytes], length: int) -> None:
        member = self.here(n)
        if member is not None:
            asked = keys[:length]
            found = member.locator.holders(FORMAT, [asked, TRUNK], time.monotonic() + LOAD_SECONDS)
            assert len(found.held) == 2 and found.reason
            assert all(len(row) == len(asked) for row in found.held[0].values())
            end, reason = member.locate(asked)
            assert reason or end == len(asked)

    @rule(n=a_member, keys=a_chain, length=a_length, again=st.booleans())
    def load(self, n: int, keys: list[bytes], length: int, again: bool) -> None:
        """Every block is ready or missed for a reason, and every byte is right: `LocalMember.load` asserts both."""
        member = self.here(n)
        if member is not None:
            ready = member.load(keys[:length])
            assert member.slab.arena.run(keys[:length]) >= ready
        if again:  # by each other one, too
            for other in self.members:
                if other is not None and other is not member:
                    other.load(keys[:length])

    @rule(n=a_member, other=a_member, keys=a_chain, length=a_length, gap=st.integers(0, 40))
    def share(self, n: int, other: int, keys: list[bytes], length: int, gap: int) -> None:
        """Stored here, announced, then asked for there; with a block that went after it was announced."""
        self.store(n, keys, length, 0)
        self.announce({n})
        if gap < length:
            self.drop(n, keys, gap)
        self.load(other, keys, length, again=False)

    @rule(n=a_member, keys=a_chain)
    def lease(self, n: int, keys: list[bytes]) -> None:
        member = self.here(n)
        if member is not None and len(self.leases) < 3:
            self.leases.append((member, member.slab.arena.lease(keys, time.monotonic(), WAIT)[0]))

    @precondition(lambda self: self.leases)
    @rule()
    def release(self) -> None:
        member, lease = self.leases.pop(0)
        member.slab.arena.release(lease)

    @rule(n=a_member, count=st.integers(1, SLOTS))
    def evict(self, n: int, count: int) -> None:
        """As when writers need room and then don't fill it."""
        member = self.here(n)
        if member is not None:
            arena = member.slab.arena
            slots = arena.reserve(count, time.monotonic())
            assert len(set(slots)) == len(slots) <= count
            arena.give_back(slots)

    @rule(n=a_member, keys=a_chain, place=st.integers(0, 19))
    def drop(self, n: int, keys: list[bytes], place: int) -> None:
        """A block whose bytes have failed their tag, also in the middle of a chain."""
        member = self.here(n)
        if member is not None:
            member.slab.arena.drop(keys[place % len(keys)])

    @rule(n=a_member)
    def look_for_orphans(self, n: int) -> None:
        member = self.here(n)
        if member is not None:
            member.orphans.look(member.slab)

    @rule(n=a_member, told=st.booleans())
    def leave(self, n: int, told: bool) -> None:
        """told: its address is a seed no more; else it is only dead."""
        member = self.here(n)
        if member is not None and sum(one is not None for one in self.members) > 2:
            self.members[n] = None
            self.leases = [(holder, lease) for holder, lease in self.leases if holder is not member]
            member.leave() if told else member.kill()
            if told:
                self.know_each_other()

    @rule(n=a_member)
    def rejoin(self, n: int) -> None:
        if self.members[n] is None:
            self.come(n)
            self.know_each_other()

    @rule(n=a_member)
    def change_readiness(self, n: int) -> None:
        member = self.here(n)
        if member is not None:
            member.ready = not member.ready

    @rule()
    def let_time_pass(self) -> None:
        Time.now += SETTLE_SECONDS

    def know_each_other(self) -> None:
        """Until all see all that are there; of one that died without a word they learn as they go on."""
        present = [member for member in self.members if member is not None]
        for one in present:
            others = {other.life for other in present if other is not one}
            until("all are seen", lambda one=one, others=others: others <= lives(one))

    # -- what always holds ---------------------------------------------------------------------------

    @invariant()
    def limits_hold(self) -> None:
        for member in getattr(self, "members", ()):
            if member is not None:
                arena = member.slab.arena
                assert len(arena) <= arena.used_slots <= arena.slot_count
                assert arena.orphan_blocks <= len(arena.orphans()) <= len(arena)
                assert len(member.entries) <= ENTRIES
                assert all(len(r.heads) <= ENTRIES // SHARES for r in list(member.entries._records.values()))
                assert member.members.learnt <= view.MAX_ADDRESSES

    def teardown(self) -> None:
        for member in self.members:
            if member is not None:
                SEEN.update(member.account.misses)
                SEEN.update({what: moved.blocks for what, moved in member.account.transfers.items()})
        for member, lease in self.leases:
            member.slab.arena.release(lease)
        for member in self.members:
            if member is not None:
                member.check()
                arena = member.slab.arena
                until("no lease is left", lambda arena=arena: arena.leased_blocks == 0)
                slots = arena.reserve(arena.slot_count, time.monotonic())
                assert len(slots) == arena.slot_count and len(arena) == 0
                member.kill()
        self.folder.cleanup()


def lives(member: LocalMember) -> set[tuple[str, str]]:
    return {(m.welcome.member, m.welcome.incarnation) for m in member.members.live(FORMAT) if m.welcome is not None}


def test_a_pool_in_any_order_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "REFRESH_SECONDS", 0.05)
    monkeypatch.setattr(locate, "HANDFUL", 0)  # homes are what this is about
    quiet = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    run_state_machine_as_test(
        Pool,
        settings=settings(
            max_examples=18,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=quiet,
        ),
    )
    assert min(SEEN["demand_in"], SEEN["evicted"], SEEN["never_published"]) > 20  # it has seen what it is about
