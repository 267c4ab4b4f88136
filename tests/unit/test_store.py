"""Storing: what is not committed is not published, and a full queue or arena costs a count and nothing else."""

import os
import threading
import time
from collections.abc import Iterator

import pytest

from kvpool_agent.account import Account
from kvpool_agent.flows import store
from kvpool_agent.flows.store import HostPool, Offer, StoreFlow, Uncommitted
from kvpool_agent.store.arena import Arena
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of
from kvpool_client.memory import ReadOnlyMapping

ROW, ROWS, SLOTS = 4096, 16, 10


def key(n: int) -> bytes:
    return bytes([n]) * 16


def offers(*numbers: int) -> list[Offer]:
    """Block n lies in row n."""
    return [Offer(key(n), key(n - 1) if n else b"", n) for n in numbers]


@pytest.fixture
def slab() -> Slab:
    return Slab(b"f" * 16, {}, ROW, ArenaMemory.anonymous(SLOTS * ROW), Arena(SLOTS))


@pytest.fixture
def rows() -> Iterator[HostPool]:
    descriptor = os.memfd_create("rows", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, ROWS * ROW)
    for n in range(ROWS):
        os.pwrite(descriptor, bytes([n]) * ROW, n * ROW)
    mapping = ReadOnlyMapping(descriptor, ROWS * ROW)
    yield HostPool(mapping, ROWS, ROW)
    mapping.close()
    os.close(descriptor)


class Bench:
    """A store flow and its answers; `ask` submits a job and waits for its answer."""

    def __init__(self, slab: Slab, rows: HostPool) -> None:
        self.slab, self.rows = slab, rows
        self.account = Account()
        self.flow = StoreFlow(self.account)
        self.open = Uncommitted()
        self.answers: dict[int, tuple[bool, int]] = {}
        self._answered = threading.Condition()

    def reply(self, job: int, whole: bool, stored: int) -> None:
        with self._answered:
            self.answers[job] = (whole, stored)
            self._answered.notify_all()

    def submit(self, job: int, *numbers: int) -> None:
        self.flow.submit(self.slab, self.rows, self.open, job, offers(*numbers), self.reply)

    def ask(self, job: int, *numbers: int) -> tuple[bool, int]:
        self.submit(job, *numbers)
        with self._answered:
            assert self._answered.wait_for(lambda: job in self.answers, 10)
        return self.answers[job]


@pytest.fixture
def bench(slab: Slab, rows: HostPool) -> Iterator[Bench]:
    made = Bench(slab, rows)
    made.flow.start()
    yield made
    made.flow.close()


def test_a_committed_store_is_published_with_its_bytes_and_tag(bench: Bench, slab: Slab) -> None:
    assert bench.ask(1, 0, 1, 2) == (True, 3)
    assert (len(slab.arena), slab.arena.used_slots) == (0, 3)
    bench.flow.commit(bench.open, 1)
    _, held = slab.arena.lease([key(0), key(1), key(2)], 0.0, 1.0)
    for n, block in enumerate(held):
        assert block is not None and not block.foreign
        assert bytes(slab.view(block.slot)) == bytes([n]) * ROW
        assert block.tag == tag_of(key(n), slab.view(block.slot))
    assert bench.account.transfers["store_in"].bytes == 3 * ROW
    bench.flow.commit(bench.open, 1)  # twice is once
    bench.flow.commit(bench.open, 99)
    assert bench.account.transfers["store_in"].bytes == 3 * ROW


def test_only_blocks_that_are_not_here_are_copied(bench: Bench) -> None:
    bench.ask(1, 0, 1)
    bench.flow.commit(bench.open, 1)
    assert bench.ask(2, 0, 1, 2) == (True, 1)
    bench.flow.commit(bench.open, 2)
    assert bench.ask(3, 0, 1, 2) == (True, 0)


def test_two_jobs_with_the_same_block_publish_it_once(bench: Bench, slab: Slab) -> None:
    assert bench.ask(1, 0) == bench.ask(2, 0) == (True, 1)
    bench.flow.commit(bench.open, 1)
    bench.flow.commit(bench.open, 2)
    assert (len(slab.arena), slab.arena.used_slots) == (1, 1)
    assert bench.account.transfers["store_in"].blocks == 1


def test_a_forgotten_job_gives_its_slots_back(bench: Bench, slab: Slab) -> None:
    bench.ask(1, 0, 1)
    bench.flow.forget(bench.open, 1)
    bench.flow.forget(bench.open, 1)
    bench.flow.commit(bench.open, 1)
    assert (len(slab.arena), slab.arena.used_slots) == (0, 0)
    assert bench.account.counters["stores_forgotten"] == 1


def test_of_jobs_whose_commit_has_been_lost_the_slots_are_free_again_and_others_wait_for_their_verdict(
    bench: Bench, slab: Slab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "COMMIT_SECONDS", 0.0)
    bench.ask(1, 0, 1)
    bench.ask(2, 2)
    assert (slab.arena.used_slots, bench.account.counters["stores_forgotten"]) == (1, 1)
    bench.open.committed(2)
    bench.ask(3, 3)
    assert (slab.arena.used_slots, bench.account.counters["stores_forgotten"]) == (2, 1)
    bench.flow.commit(bench.open, 1)  # too late
    bench.flow.commit(bench.open, 2)
    assert slab.arena.held([key(0), key(1), key(2)]) == [False, False, True]


def test_the_end_of_a_session_forgets_all_its_jobs_and_takes_no_more(bench: Bench, slab: Slab) -> None:
    bench.ask(1, 0, 1)
    bench.ask(2, 2)
    bench.flow.end_session(bench.open)
    assert slab.arena.used_slots == 0
    assert bench.ask(3, 3) == (False, 0)
    assert slab.arena.used_slots == 0


def test_without_room_the_beginning_is_kept_and_the_answer_says_so(bench: Bench, slab: Slab) -> None:
    assert bench.ask(1, *range(SLOTS + 3)) == (False, SLOTS)
    bench.flow.commit(bench.open, 1)
    assert slab.arena.run([key(n) for n in range(ROWS)]) == SLOTS
    assert bench.account.counters["stores_without_room"] == 1


def test_a_worker_that_was_just_restarted_stores_nothing_and_counts_it(rows: HostPool) -> None:
    held_back = Arena(SLOTS, writable_at=time.monotonic() + 1000)
    bench = Bench(Slab(b"f" * 16, {}, ROW, ArenaMemory.anonymous(SLOTS * ROW), held_back), rows)
    bench.flow.start()
    assert bench.ask(1, 0, 1) == (False, 0)
    assert bench.account.counters == {"stores_just_restarted": 1}
    bench.flow.close()


def test_a_host_pool_that_is_gone_is_not_read(bench: Bench, slab: Slab, rows: HostPool) -> None:
    rows.mapping.close()
    assert bench.ask(1, 0) == (False, 0)
    assert slab.arena.used_slots == 0


def test_a_job_that_finds_the_queue_full_is_answered_at_once_uncopied(slab: Slab, rows: HostPool) -> None:
    idle = Bench(slab, rows)  # its thread does not run, so nothing leaves the queue
    for job in range(store.QUEUE_JOBS + 2):
        idle.submit(job, 0)
    assert idle.answers == {store.QUEUE_JOBS: (False, 0), store.QUEUE_JOBS + 1: (False, 0)}
    assert idle.account.counters["stores_refused_busy"] == 2


def test_more_uncommitted_jobs_than_the_bound_are_not_kept(
    bench: Bench, slab: Slab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_UNCOMMITTED", 2)
    assert [bench.ask(job, job) for job in range(3)] == [(True, 1), (True, 1), (False, 0)]
    assert slab.arena.used_slots == 2


def test_before_a_verdict_on_the_engine_its_blocks_hold_a_quarter_of_the_arena_at_most(
    slab: Slab, rows: HostPool
) -> None:
    waiting = True
    bench = Bench(slab, rows)
    bench.flow = StoreFlow(bench.account, lambda: waiting)
    bench.flow.start()
    assert bench.ask(1, 0) == (True, 1)
    assert bench.ask(2, 1, 2, 3) == (False, 1)
    assert bench.ask(3, 4) == (False, 0)
    assert (slab.arena.used_slots, bench.account.counters) == (SLOTS // 4, {"stores_await_verdict": 2})
    waiting = False
    for job in (1, 2):
        bench.flow.commit(bench.open, job)
    assert bench.ask(4, *range(8)) == (True, 6)
    bench.flow.close()
