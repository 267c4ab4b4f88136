"""Threads for disk and external store where the system starts none: no place is lost, and nothing is begun later."""

import threading
import time
from collections.abc import Callable

import pytest
from replica import wait_for

from kvpool_agent.store import threads
from kvpool_agent.store.disk.lanes import Lanes, NoThread
from kvpool_agent.store.external.calls import WAITING, Calls
from kvpool_agent.store.external.objects import BUSY, StoreError

THREADS = 2


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """No thread can be started, until it is called."""

    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    return monkeypatch.undo


def test_a_thread_that_can_not_start_keeps_no_place_on_the_disk(no_thread: Callable[[], None]) -> None:
    lanes, ran = Lanes("test", THREADS), list[str]()
    for _ in range(2 * THREADS):
        with pytest.raises(NoThread):
            lanes.call(lambda _alive: ran.append("refused"), time.monotonic() + 20)
    no_thread()
    together = threading.Barrier(THREADS + 1)
    callers = [
        threading.Thread(target=lanes.call, args=(lambda _alive: together.wait(20), time.monotonic() + 20))
        for _ in range(THREADS)
    ]
    for caller in callers:
        caller.start()
    together.wait(20)  # so many run side by side
    for caller in callers:
        caller.join(20)
    assert (lanes.stuck, ran) == (0, [])


def test_a_thread_that_can_not_start_keeps_no_place_before_the_store(no_thread: Callable[[], None]) -> None:
    calls, ran = Calls("test", THREADS), list[str]()
    for _ in range(2 * THREADS * WAITING):
        with pytest.raises(StoreError) as raised:
            calls.begin(lambda: ran.append("refused"))
        assert (raised.value.word, raised.value.detail) == (BUSY, "no thread can be started")
    no_thread()
    gate = threading.Event()
    open_calls = [calls.begin(lambda: gate.wait(20)) for _ in range(THREADS * WAITING)]
    with pytest.raises(StoreError, match="too many calls are open"):
        calls.begin(lambda: True)
    gate.set()
    assert all(Calls.wait(call, time.monotonic() + 20) for call in open_calls)
    assert ran == []


def test_what_the_work_raises_comes_back() -> None:
    def broken(_alive: object) -> None:
        raise KeyError("k")

    lanes = Lanes("test", 1)
    for _ in range(3):
        with pytest.raises(KeyError):
            lanes.call(broken, time.monotonic() + 20)


def test_a_thread_without_work_ends_and_another_one_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.01)

    def running() -> int:
        return sum(thread.name == "ends" for thread in threading.enumerate())

    made, gate = threads.Threads("ends", THREADS), threading.Event()
    for _ in range(3):
        gate.clear()
        begun = [made.begin(lambda: gate.wait(20)) for _ in range(2 * THREADS)]
        assert running() == THREADS
        gate.set()
        assert [future.result(20) for future in begun if future is not None] == [True] * 2 * THREADS
        wait_for("they end", lambda: not running(), 20, 0.01)
