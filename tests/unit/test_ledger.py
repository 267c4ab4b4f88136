"""Every engine job ends exactly once, in whatever order its enders come."""

import itertools
import random
import threading

import pytest

from kvpool_client.ledger import Ledger, Result

KEYS = (b"a", b"b", b"c")
ENDERS = {
    "close": lambda ledger: ledger.close(1, success=True),
    "expire": lambda ledger: ledger.expire(100.0),
    "fail_all": lambda ledger: ledger.fail_all(),
    "drain": lambda ledger: ledger.drain(),
}


@pytest.mark.parametrize("is_load", [False, True], ids=["store", "load"])
@pytest.mark.parametrize("order", list(itertools.permutations(ENDERS)), ids="-".join)
def test_a_job_is_reported_once_whoever_comes_first(order: tuple[str, ...], is_load: bool) -> None:
    ledger = Ledger()
    ledger.open(1, KEYS, is_load=is_load, deadline=10.0)
    assert ledger.pending
    for name in order:
        ENDERS[name](ledger)
    (result,) = ledger.take()
    assert result.job == 1
    assert result.success is (order[0] == "close" and not is_load)
    assert not ledger.pending and ledger.take() == [] and ledger.load_rows == 0


@pytest.mark.parametrize("ender", ["expire", "fail_all"])
def test_a_load_with_a_running_copy_is_not_closed_until_the_copy_ends(ender: str) -> None:
    ledger = Ledger()
    ledger.open(1, KEYS, is_load=True, deadline=10.0)
    assert ledger.begin_copy(1, 0.0)
    ENDERS[ender](ledger)
    ENDERS[ender](ledger)
    assert ledger.take() == [] and ledger.load_rows == 3
    ledger.end_copy(1, b"a", valid=True)
    assert ledger.take() == [Result(1, False, True, (b"a",))]
    assert not ledger.begin_copy(1, 0.0)
    assert not ledger.close(1, success=False)
    assert ledger.take() == []


def test_drain_waits_for_the_copy_that_runs_and_leaves_nothing_open() -> None:
    ledger = Ledger()
    ledger.open(1, KEYS, is_load=True, deadline=10.0)
    ledger.open(2, KEYS, is_load=True, deadline=10.0)
    ledger.open(3, KEYS, is_load=False, deadline=10.0)
    assert ledger.begin_copy(1, 0.0)
    drained = threading.Event()
    thread = threading.Thread(target=lambda: (ledger.drain(), drained.set()))
    thread.start()
    # the two others end at once
    while len(ledger._results) < 2:
        threading.Event().wait(0.001)
    assert not drained.is_set()
    ledger.end_copy(1, b"a", valid=True)
    thread.join(5)
    assert drained.is_set()
    assert sorted(result.job for result in ledger.take()) == [1, 2, 3]
    assert not ledger.pending


def test_only_valid_copies_count_and_all_of_them_make_success() -> None:
    ledger = Ledger()
    ledger.open(1, KEYS, is_load=True, deadline=10.0)
    for key, valid in zip(KEYS, (True, False, True), strict=True):
        assert ledger.begin_copy(1, 0.0)
        ledger.end_copy(1, key, valid=valid)
    assert ledger.close(1, success=False)
    assert ledger.take() == [Result(1, False, True, (b"a", b"c"))]
    ledger.open(2, KEYS, is_load=True, deadline=10.0)
    for key in KEYS:
        assert ledger.begin_copy(2, 0.0)
        ledger.end_copy(2, key, valid=True)
    assert ledger.close(2, success=False)
    assert ledger.take() == [Result(2, True, True, KEYS)]


def test_no_copy_begins_at_or_after_the_deadline_and_what_came_before_is_kept() -> None:
    ledger = Ledger()
    ledger.open(1, KEYS, is_load=True, deadline=10.0)
    assert ledger.begin_copy(1, 9.9)
    ledger.end_copy(1, b"b", valid=True)
    assert not ledger.begin_copy(1, 10.0)
    assert ledger.take() == [Result(1, False, True, (b"b",))]


def test_a_store_may_be_closed_at_any_time_and_a_later_copied_finds_it_closed() -> None:
    ledger = Ledger()
    ledger.open(1, KEYS, is_load=False, deadline=10.0)
    assert ledger.expire(9.9) == 0
    assert ledger.expire(10.0) == 1
    assert not ledger.close(1, success=True)
    assert ledger.take() == [Result(1, False, False, ())]


def test_a_store_that_succeeds_reports_all_its_keys() -> None:
    ledger = Ledger()
    ledger.open(1, KEYS, is_load=False, deadline=10.0)
    assert ledger.close(1, success=True)
    (result,) = ledger.take()
    assert result.success and set(result.done) == set(KEYS)


def test_expire_and_fail_all_count_the_stores_they_ended() -> None:
    ledger = Ledger()
    for job, is_load in enumerate((True, False, False)):
        ledger.open(job, KEYS, is_load=is_load, deadline=float(job))
    assert ledger.expire(1.0) == 1
    assert ledger.fail_all() == 1
    assert len(ledger.take()) == 3


def test_rows_of_open_loads_are_counted() -> None:
    ledger = Ledger()
    ledger.open(1, KEYS, is_load=True, deadline=10.0)
    ledger.open(2, KEYS, is_load=False, deadline=10.0)
    assert ledger.load_rows == 3
    ledger.fail_all()
    assert ledger.load_rows == 0


def test_threads_that_compete_for_a_thousand_jobs_end_each_of_them_once() -> None:
    ledger = Ledger()
    jobs = 1000
    draw = random.Random(3)
    for job in range(jobs):
        ledger.open(job, KEYS, is_load=draw.random() < 0.5, deadline=draw.random())
    order = list(range(jobs))
    draw.shuffle(order)

    def copies() -> None:
        for job in sorted(loads):
            for key in KEYS:
                if not ledger.begin_copy(job, 0.0):
                    break
                ledger.end_copy(job, key, valid=True)
            if job % 2:
                ledger.close(job, success=False)

    def copied() -> None:
        for job in order:
            if job not in loads:
                ledger.close(job, success=True)

    def deadlines() -> None:
        for i in range(100):
            ledger.expire(i / 100)

    loads = {job for job, entry in ledger._open.items() if entry.is_load}
    threads = [threading.Thread(target=target) for target in (copies, copied, deadlines, lambda: ledger.fail_all())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.drain()
    results = ledger.take()
    assert sorted(result.job for result in results) == list(range(jobs))
    assert all(result.success == (set(result.done) == set(KEYS)) for result in results)
    assert ledger.load_rows == 0 and not ledger.pending
