"""Loads: a block counts only if the lease held all the time, and whatever is not copied is reported as failed."""

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from replica import wait_for

from kvpool_client import wire
from kvpool_client.ledger import Ledger, Result
from kvpool_client.loader import Loader
from kvpool_client.memory import ReadOnlyMapping, address_of
from kvpool_client.session import Attached

ROW, ROWS, SLOTS = 64, 8, 8
KEYS = [bytes([n]) * 36 for n in range(ROWS)]


class Agent:
    """A session whose agent holds block n in slot n; `before_answer` runs before a lease is given."""

    def __init__(self) -> None:
        descriptor = os.memfd_create("arena", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, SLOTS * ROW)
        for n in range(SLOTS):
            os.pwrite(descriptor, bytes([n + 1]) * ROW, n * ROW)
        self.attached: Attached | None = Attached(1, ReadOnlyMapping(descriptor, SLOTS * ROW), ROW, 60.0, 5.0)
        os.close(descriptor)
        self.slots: Callable[[list[bytes]], list[int]] = lambda keys: [KEYS.index(one) for one in keys]
        self.before_answer: Callable[[], None] = lambda: None
        self.released: list[int] = []
        self.asked: list[int] = []

    def call(self, header: dict[str, Any], tail: bytes, seconds: float) -> wire.Frame | None:
        keys = wire.split(tail, 36)
        self.asked.append(len(keys))
        self.before_answer()
        return wire.Frame({"verb": "leased", "lease": len(self.asked), "slots": self.slots(keys)})

    def post(self, header: dict[str, Any], tail: bytes = b"") -> bool:
        self.released.append(header["lease"])
        return True


class Bench:
    """A loader over rows of this process."""

    def __init__(self) -> None:
        self.agent, self.ledger = Agent(), Ledger()
        self.rows = bytearray(ROWS * ROW)
        self.loader = Loader(self.agent, self.ledger, address_of(memoryview(self.rows)), ROW)  # type: ignore[arg-type]

    def load(self, *numbers: int, deadline: float = 1e18) -> Result:
        """Loads block n into row n; its one result."""
        self.ledger.open(1, [KEYS[n] for n in numbers], is_load=True, deadline=deadline)
        self.loader.submit(1, [(KEYS[n], n) for n in numbers], 7)
        (result,) = wait_for("result", self.ledger.take, 10, 0.002)
        return result

    def filled(self) -> list[int]:
        return [n for n in range(ROWS) if self.rows[n * ROW : (n + 1) * ROW] == bytes([n + 1]) * ROW]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.loader.start()
    yield made
    made.loader.close()


def test_every_block_lies_in_its_row_and_the_lease_is_given_back(bench: Bench) -> None:
    assert bench.load(3, 1, 2) == Result(1, True, True, (KEYS[3], KEYS[1], KEYS[2]))
    assert bench.filled() == [1, 2, 3]
    assert bench.agent.released == [1]


def test_a_block_that_the_agent_lost_fails_alone(bench: Bench) -> None:
    bench.agent.slots = lambda keys: [-1 if one == KEYS[1] else KEYS.index(one) for one in keys]
    assert bench.load(0, 1, 2) == Result(1, False, True, (KEYS[0], KEYS[2]))


def test_a_copy_under_a_lease_that_ran_out_does_not_count(bench: Bench) -> None:
    attached = bench.agent.attached
    assert attached is not None
    bench.agent.attached = Attached(1, attached.arena, ROW, 0.0, 5.0)
    assert bench.load(0, 1) == Result(1, False, True, ())


def test_a_copy_does_not_count_when_the_session_changed_meanwhile(bench: Bench) -> None:
    def another() -> None:
        old = bench.agent.attached
        assert old is not None
        bench.agent.attached = Attached(2, old.arena, ROW, 60.0, 5.0)

    bench.agent.before_answer = another
    assert bench.load(0, 1) == Result(1, False, True, ())


def test_without_a_session_or_with_a_closed_arena_the_load_fails_at_once(bench: Bench) -> None:
    attached, bench.agent.attached = bench.agent.attached, None
    assert bench.load(0) == Result(1, False, True, ())
    assert attached is not None
    bench.agent.attached = attached
    attached.arena.close()
    assert bench.load(0) == Result(1, False, True, ())
    assert bench.agent.asked == []


def test_a_deadline_that_has_passed_copies_nothing_and_gives_the_lease_back(bench: Bench) -> None:
    assert bench.load(0, 1, deadline=time.monotonic() - 1) == Result(1, False, True, ())
    assert (bench.filled(), bench.agent.released) == ([], [1])


@pytest.mark.parametrize("slots", [[0], [0, SLOTS], [0, 10**9], ["x", "y"]], ids=str)
def test_an_answer_that_cannot_be_true_fails_the_load_and_the_next_one_works(bench: Bench, slots: list[Any]) -> None:
    good = bench.agent.slots
    bench.agent.slots = lambda keys: slots
    assert not bench.load(0, 1).success
    bench.agent.slots = good
    assert bench.load(0, 1).success


def test_no_row_is_written_after_its_job_was_reported(bench: Bench) -> None:
    bench.agent.before_answer = lambda: bench.ledger.fail_all()  # type: ignore[assignment,return-value]
    assert bench.load(0, 1) == Result(1, False, True, ())
    bench.loader.close()
    assert ctypes.string_at(address_of(memoryview(bench.rows)), len(bench.rows)) == bytes(ROWS * ROW)
