"""Recovery: a new worker has exactly the blocks that the last one had published, whatever has happened to the rest."""

import os
import random
import time
from collections.abc import Iterator

import pytest

from kvpool_agent.account import Account
from kvpool_agent.flows.recover import RecoveryFlow
from kvpool_agent.store import headers
from kvpool_agent.store.headers import SlotHeader
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.recovery import Recovered, recover
from kvpool_agent.store.slab import LEAST_BLOCKS, NoRoom, OtherFormat, Slab, Slabs
from kvpool_agent.store.tag import tag_of
from kvpool_contract.names import format_fingerprint

FIELDS = {"engine": "e"}
SLOT, SIZE = 512, 8192
SLOTS = headers.slots_that_fit(SIZE, SLOT, 64)
Blocks = dict[bytes, tuple[bytes, bytes, bool, bytes]]


def key(n: int) -> bytes:
    return n.to_bytes(16, "big")


def content(n: int) -> bytes:
    return random.Random(n).randbytes(SLOT)


class Life:
    """One worker's hold of the memory; `killed` gives the next one's."""

    def __init__(self, descriptor: int, writable_at: float = 0.0, size: int = SIZE) -> None:
        self.descriptor = descriptor
        self.memory = ArenaMemory(descriptor, size)
        self.slabs = Slabs(self.memory, writable_at)

    def open(self) -> Slab:
        return self.slabs.open(format_fingerprint(FIELDS), FIELDS, SLOT)

    def killed(self, writable_at: float = 0.0, size: int = SIZE) -> "Life":
        return Life(self.descriptor, writable_at, size)

    def recovered(self) -> tuple[Slab, Recovered]:
        ((slab, table),) = self.slabs.reopen()
        return slab, recover(slab, table, time.monotonic() + 60, lambda block: None)


@pytest.fixture
def life() -> Iterator[Life]:
    descriptor = os.memfd_create("arena", os.MFD_CLOEXEC)
    yield Life(descriptor)
    os.close(descriptor)


def write(slab: Slab, n: int) -> int:
    """Reserves a slot and writes block n into it; -1 when there is none."""
    slots = slab.arena.reserve(1, 0.0)
    if not slots:
        return -1
    slab.view(slots[0])[:] = content(n)
    return slots[0]


def put(slab: Slab, *chain: int, foreign: bool = False) -> None:
    parent = b""
    for n in chain:
        slot = write(slab, n)
        assert slab.arena.commit(key(n), parent, slot, tag_of(key(n), slab.view(slot)), foreign=foreign)
        parent = key(n)


def blocks(slab: Slab) -> Blocks:
    keys = slab.arena.keys()
    lease, held = slab.arena.lease(keys, 0.0, 1.0)
    found = {b.key: (b.parent, b.tag, b.foreign, bytes(slab.view(b.slot))) for b in held if b is not None}
    slab.arena.release(lease)
    return found


def test_what_was_committed_is_here_again_with_parents_tags_origin_and_bytes(life: Life) -> None:
    slab = life.open()
    put(slab, 1, 2, 3)
    put(slab, 4, foreign=True)
    before = blocks(slab)
    again, found = life.killed().recovered()
    assert found == Recovered(4, 0)
    assert blocks(again) == before
    assert (again.fields, again.fingerprint, again.slot_bytes) == (FIELDS, slab.fingerprint, SLOT)
    assert (again.arena.foreign, again.arena.used_slots, again.arena.slot_count) == (1, 4, SLOTS)
    # and an engine of the format that attaches now gets this slab
    following = life.killed()
    slab, _ = following.recovered()
    assert following.open() is slab


def test_a_memory_that_nobody_cut_has_nothing_to_recover(life: Life) -> None:
    assert life.slabs.reopen() == []


def test_reserved_forgotten_evicted_and_dropped_blocks_are_not_recovered(life: Life) -> None:
    slab = life.open()
    put(slab, *range(SLOTS))
    write(slab, 100)  # evicts the last of the chain; never committed
    slab.arena.drop(key(3))
    forgotten = write(slab, 101)
    slab.arena.give_back([forgotten])
    again, found = life.killed().recovered()
    assert found == Recovered(SLOTS - 2, 0)
    assert set(blocks(again)) == {key(n) for n in range(SLOTS - 1) if n != 3}


@pytest.mark.parametrize("bit", range(0, 8 * SLOT, 97))
def test_a_flipped_bit_of_the_bytes_discards_that_slot_alone(life: Life, bit: int) -> None:
    slab = life.open()
    put(slab, 1, 2, 3)
    slab.view(1)[bit // 8] ^= 1 << bit % 8
    again, found = life.killed().recovered()
    assert found == Recovered(2, 1)
    assert set(blocks(again)) == {key(1), key(3)}  # the child stays, an orphan until its parent is stored again
    put(again, 2)
    assert again.arena.run([key(1), key(2), key(3)]) == 3


@pytest.mark.parametrize("bit", range(0, 8 * headers.SLOT_HEADER_BYTES, 7))
def test_a_flipped_bit_of_a_header_discards_that_slot_alone(life: Life, bit: int) -> None:
    slab = life.open()
    put(slab, 1, 2, 3)
    (table,) = life.slabs._tables
    life.memory.view[table._offset(1) + bit // 8] ^= 1 << bit % 8
    again, found = life.killed().recovered()
    assert found == Recovered(2, 1)
    assert set(blocks(again)) == {key(1), key(3)}
    # a discarded slot is discarded once
    assert life.killed().recovered()[1] == Recovered(2, 0)


def test_a_block_that_two_slots_claim_is_one(life: Life) -> None:
    slab = life.open()
    put(slab, 1)
    write(slab, 1)
    (table,) = life.slabs._tables
    table.fill(1, SlotHeader(key(1), b"", tag_of(key(1), slab.view(1)), False))
    again, found = life.killed().recovered()
    assert (found, again.arena.used_slots) == (Recovered(1, 1), 1)


def test_the_memory_keeps_its_size_and_its_blocks_whatever_the_configuration_says_now(life: Life) -> None:
    put(life.open(), 1, 2)
    for size in (2 * SIZE, SIZE // 2):
        life = life.killed(size=size)
        assert set(blocks(life.recovered()[0])) == {key(1), key(2)}


def test_a_format_that_was_wiped_is_not_recovered(life: Life) -> None:
    put(life.open(), 1)
    second = life.killed()
    second.recovered()
    with pytest.raises(OtherFormat):
        second.slabs.open(format_fingerprint({"other": 1}), {"other": 1}, SLOT)
    assert len(life.killed().slabs.reopen()) == 1  # asking alone wipes nothing
    second.slabs.wipe()
    third = second.killed()
    assert third.slabs.reopen() == []
    slab = third.slabs.open(format_fingerprint({"other": 1}), {"other": 1}, SLOT)
    assert len(slab.arena) == 0
    again, found = third.killed().recovered()
    assert (found, again.fields) == (Recovered(0, 0), {"other": 1})


def test_headers_count_within_the_limit(life: Life) -> None:
    with pytest.raises(NoRoom):
        life.slabs.open(format_fingerprint(FIELDS), FIELDS, SIZE // LEAST_BLOCKS)
    assert SLOTS * SLOT < SIZE == life.slabs.limit_bytes


def test_nothing_is_written_before_the_predecessors_leases_are_over_and_all_is_judged(life: Life) -> None:
    put(life.open(), 1, 2)
    following = life.killed(writable_at=10.0)
    ((slab, table),) = following.slabs.reopen()
    assert slab.arena.held([key(1)]) == [False]  # not before it was judged
    assert not slab.arena.writable(10.0) and slab.arena.reserve(1, 10.0) == []
    recover(slab, table, time.monotonic() + 60, lambda block: None)
    assert slab.arena.run([key(1), key(2)]) == 2  # read at once
    assert not slab.arena.writable(9.9) and slab.arena.reserve(SLOTS, 9.9) == []
    assert slab.arena.writable(10.0) and len(slab.arena.reserve(SLOTS, 10.0)) == SLOTS


def test_the_memory_is_not_cut_anew_before_the_predecessors_leases_are_over(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    life.killed(writable_at=time.monotonic() + 1000).open()
    assert 990 < slept[0] <= 1000


def test_slots_that_are_not_judged_in_time_are_given_up(life: Life) -> None:
    put(life.open(), 1, 2)
    (left,) = life.killed().slabs.reopen()
    assert recover(*left, time.monotonic() - 1, lambda block: None) == Recovered(0, 2)
    assert left[0].arena.used_slots == 0 and left[0].arena.writable(0.0)


def test_a_fault_in_the_middle_keeps_what_was_judged_and_leaves_an_arena_that_works(life: Life) -> None:
    put(life.open(), 1, 2, 3)
    (left,) = life.killed().slabs.reopen()

    def fail(block: SlotHeader) -> None:
        if block.key == key(2):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        recover(*left, time.monotonic() + 60, fail)
    slab = left[0]
    assert (slab.arena.held([key(1), key(2), key(3)]), slab.arena.writable(0.0)) == ([True, True, False], True)


def test_the_flow_counts_what_came_back_and_remembers_who_computed_it(life: Life) -> None:
    slab = life.open()
    put(slab, 1)
    put(slab, 2, foreign=True)
    put(slab, 3)
    slab.view(2)[0] ^= 1
    account = Account()
    assert RecoveryFlow(life.killed().slabs, account).run() == 2
    assert account.counters == {"recovered_blocks": 2, "discarded_slots": 1}
    assert [(e.word, e.detail) for e in account.events] == [("recovered", {"blocks": 2, "discarded": 1})]
    account.request([key(1), key(2)], 0, [])
    assert (account.hits.local_blocks, account.hits.shared_blocks) == (1, 1)


def test_the_flow_on_a_memory_without_headers_says_nothing(life: Life) -> None:
    account = Account()
    assert RecoveryFlow(life.slabs, account).run() == 0
    assert (account.counters, account.events) == ({}, [])


@pytest.mark.parametrize("seed", range(30))
def test_every_life_begins_with_exactly_what_the_last_one_had_published(life: Life, seed: int) -> None:
    draw = random.Random(seed)
    slab = life.open()
    for _ in range(6):
        walk(slab, draw)
        before = blocks(slab)
        life = life.killed()
        slab, found = life.recovered()
        assert found == Recovered(len(before), 0)
        assert blocks(slab) == before
        assert slab.arena.used_slots == len(before)
        assert all(data == content(int.from_bytes(k, "big")) for k, (_, _, _, data) in before.items())
    # leaves go first: no block is evicted while a child of it is here
    parents = {k: parent for k, (parent, _, _, _) in blocks(slab).items()}
    while len(slab.arena):
        had = set(slab.arena.keys())
        slab.arena.reserve(1, 0.0)
        for gone in had - set(slab.arena.keys()):
            assert not any(parents[k] == gone for k in slab.arena.keys())  # noqa: SIM118


def walk(slab: Slab, draw: random.Random) -> None:
    """A worker's life: stores, fetches, evictions, leases, and writes that never end."""
    reserved: list[tuple[int, int]] = []
    for _ in range(80):
        n = draw.randrange(1, 40)
        match draw.randrange(6):
            case 0 | 1:
                slot = write(slab, n)
                if slot >= 0:
                    reserved.append((n, slot))
            case 2 | 3 if reserved:
                n, slot = reserved.pop(draw.randrange(len(reserved)))
                parent = key(n // 2) if n // 2 else b""
                tag = tag_of(key(n), slab.view(slot))
                slab.arena.commit(key(n), parent, slot, tag, foreign=draw.random() < 0.5)
            case 4:
                keys = [key(draw.randrange(1, 40)) for _ in range(3)]
                lease, _ = slab.arena.lease(keys, 0.0, 1.0)
                if draw.random() < 0.8:
                    slab.arena.release(lease)
            case 5 if draw.random() < 0.3:
                slab.arena.drop(key(n))
            case _:
                if reserved:
                    slab.arena.give_back([reserved.pop()[1]])
