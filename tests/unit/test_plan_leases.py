"""What plans keep for their loads: bounded, whatever threads do at the same time, and over with the session."""

import sys
import threading
from collections.abc import Iterator

import pytest

from kvpool_agent.flows import plan_leases
from kvpool_agent.flows.lookup import NO_LEASE
from kvpool_agent.flows.plan_leases import PlanLeases
from kvpool_agent.store.arena import Arena
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slab

ROW, KEY = 4096, b"k" * 16


@pytest.fixture
def slab() -> Slab:
    made = Slab(b"f" * 16, {}, ROW, ArenaMemory.anonymous(8 * ROW), Arena(8))
    (slot,) = made.arena.reserve(1, 0.0)
    made.arena.commit(KEY, b"", slot, b"t" * 16, foreign=False)
    return made


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def leased(slab: Slab) -> int:
    return slab.arena.lease([KEY], 0.0, 1000.0)[0]


def test_a_load_and_the_end_of_the_session_free_what_was_kept(slab: Slab) -> None:
    kept = PlanLeases()
    for plan in (1, 2, 3):
        kept.keep(plan, slab, leased(slab))
    kept.keep(4, slab, NO_LEASE)
    kept.keep(5, None, 7)
    assert len(kept) == 3
    kept.release(2)
    kept.release(2)
    assert (len(kept), slab.arena.leased_blocks) == (2, 1)
    kept.release_all()
    assert (len(kept), slab.arena.leased_blocks) == (0, 0)


@pytest.mark.usefixtures("restless")
def test_plans_that_are_never_loaded_from_are_forgotten_whoever_else_answers(slab: Slab) -> None:
    kept, faults = PlanLeases(), list[BaseException]()

    def answers(first: int) -> None:
        try:
            for plan in range(first, first + 5000):
                kept.keep(plan, slab, 1)
        except BaseException as error:  # noqa: BLE001 - to be told on the test's own thread
            faults.append(error)

    threads = [threading.Thread(target=answers, args=(n * 10_000,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (faults, len(kept)) == ([], plan_leases.MAX_PLANS)
