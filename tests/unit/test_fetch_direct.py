"""Fetching by RDMA first: what came stays, the rest goes over TCP, and no slot that may be written to goes back."""

from collections.abc import Callable, Sequence

import pytest
from fetch_source import SLOT, Clock, Source, held, key, new_slab, soon, unpaced, wanted

from kvpool_agent.account import Account
from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.flows import fetch as fetch_flow
from kvpool_agent.flows.fetch import Fetcher
from kvpool_agent.peer.connection import PeerBusy
from kvpool_agent.peer.rdma.pauses import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, Pauses
from kvpool_agent.peer.rdma.words import RdmaError
from kvpool_agent.policy.sketch import ERROR
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of

Landed = Callable[[int, bytes, int], None]


class Direct:
    """A reader that does `before`, brings so many blocks, each after `each`, and then does `then`."""

    def __init__(
        self,
        brings: int,
        then: Callable[[list[int]], None] = lambda _: None,
        *,
        is_ready: bool = True,
        before: Callable[[], None] = lambda: None,
        each: Callable[[], None] = lambda: None,
    ) -> None:
        self.brings, self.then, self.is_ready, self.before, self.each = brings, then, is_ready, before, each
        self.asked: list[int] = []

    def ready(self, slab: Slab, purpose: str) -> bool:
        return self.is_ready

    def fetch(
        self, slab: Slab, address: str, keys: Sequence[bytes], purpose: str, deadline: float, slots: list[int],
        begins: Callable[[], None], landed: Landed,
    ) -> bool:  # fmt: skip
        self.asked.append(len(keys))
        self.before()
        for index in range(min(self.brings, len(keys))):
            begins()
            self.each()
            slot = slots.pop(0)
            slab.view(slot)[:] = keys[index] * (SLOT // 16)
            landed(index, tag_of(keys[index], slab.view(slot)), slot)
        self.then(slots)
        return False


def fails(slots: list[int]) -> None:
    raise RdmaError("rdma_unreachable")


@pytest.fixture
def slab() -> Slab:
    return new_slab()


def made(direct: Direct) -> tuple[Fetcher, Source, Account]:
    account, peer = Account(), Source()
    return Fetcher(peer, Breakers(account), account, unpaced, direct), peer, account  # type: ignore[arg-type]


def test_what_comes_by_rdma_is_not_asked_for_by_tcp(slab: Slab) -> None:
    fetcher, peer, account = made(Direct(4))
    assert fetcher.fetch(slab, "peer", wanted(0, 1, 2, 3), "demand", soon()) == ""
    assert (held(slab), peer.asked, account.counters) == ([0, 1, 2, 3], [], {})
    assert account.transfers["demand_in"].blocks == 4


def test_what_has_not_come_when_it_fails_is_asked_for_by_tcp_in_the_same_fetch(slab: Slab) -> None:
    fetcher, peer, account = made(Direct(2, fails))
    assert fetcher.fetch(slab, "peer", wanted(0, 1, 2, 3), "demand", soon()) == ""
    assert (held(slab), peer.asked) == ([0, 1, 2, 3], [[key(2), key(3)]])
    assert account.counters == {"fallback_rdma_unreachable": 1}
    assert slab.arena.used_slots == 4


def test_slots_that_may_still_be_written_to_are_not_given_back(slab: Slab) -> None:
    kept: list[int] = []

    def lost(slots: list[int]) -> None:
        kept.extend(slots)
        slots.clear()
        raise RdmaError("rdma_process_ended")

    fetcher, peer, _ = made(Direct(1, lost))
    assert fetcher.fetch(slab, "peer", wanted(0, 1, 2, 3), "demand", soon()) == "transfer_failed"
    assert (held(slab), peer.asked, len(kept), slab.arena.used_slots) == ([0], [], 3, 4)
    slab.arena.give_back(kept)
    assert slab.arena.used_slots == 1


def test_a_source_that_is_busy_is_asked_again_the_same_way(slab: Slab) -> None:
    calls: list[int] = []

    def busy_once(slots: list[int]) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise PeerBusy(0.01)

    direct = Direct(0, busy_once)
    fetcher, peer, account = made(direct)
    assert fetcher.fetch(slab, "peer", wanted(0, 1), "demand", soon()) == "evicted"
    assert (direct.asked, peer.asked, account.counters) == ([2, 2], [], {"fetch_asked_again": 1})


def test_without_a_device_nothing_is_tried(slab: Slab) -> None:
    direct = Direct(2, is_ready=False)
    fetcher, peer, account = made(direct)
    assert fetcher.fetch(slab, "peer", wanted(0, 1), "demand", soon()) == ""
    assert (direct.asked, len(peer.asked), account.counters) == ([], 1, {})


def test_what_comes_by_rdma_is_measured_from_its_first_byte_on(slab: Slab, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock([])
    monkeypatch.setattr(fetch_flow, "time", clock)
    fetcher, _, _ = made(Direct(4, before=lambda: clock.sleep(2.0), each=lambda: clock.sleep(0.5)))
    assert fetcher.fetch(slab, "peer", wanted(0, 1, 2, 3), "demand", clock.monotonic() + 100) == ""
    (path,) = fetcher.costs.snapshot().paths.values()
    assert (path.queue.p50, path.rate.p50) == (pytest.approx(2.0, ERROR), pytest.approx(4 * SLOT / 2.0, ERROR))
    assert path.moved == 1


def test_after_failures_a_member_is_left_alone_for_longer_and_longer_and_a_success_ends_that() -> None:
    now = [100.0]
    pauses, error = Pauses(lambda: now[0]), RdmaError("rdma_late")
    assert pauses.why("a") is None
    pause = FIRST_PAUSE_SECONDS
    while pause < LONGEST_PAUSE_SECONDS:
        pauses.failed("a", error)
        now[0] += pause - 0.01
        assert (pauses.why("a"), pauses.why("b")) == (error, None)
        now[0] += 0.01
        assert (pauses.why("a"), pauses.last("a")) == (None, error)
        pause *= 2
    for _ in range(2):
        pauses.failed("a", error)
        now[0] += LONGEST_PAUSE_SECONDS
        assert pauses.why("a") is None
    pauses.succeeded("a")
    assert (pauses.last("a"), pauses.failures()) == (None, [])
    pauses.failed("a", error)
    now[0] += FIRST_PAUSE_SECONDS
    assert pauses.why("a") is None
