"""Fetching: whatever came before a fault is kept, unfilled slots go back, and no block is fetched twice at a time."""

import threading
import time
from collections.abc import Sequence

import pytest
from fetch_source import SLOT, SLOTS, Clock, Land, Source, held, key, new_slab, soon, unpaced, wanted, whole
from replica import wait_for

from kvpool_agent.account import Account
from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.flows import fetch as fetch_flow
from kvpool_agent.flows.fetch import (
    LEAST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Fetcher,
    InFlight,
    Wanted,
)
from kvpool_agent.peer.connection import PeerBusy, PeerError
from kvpool_agent.policy.breaker import FAILURES, FIRST_PAUSE_SECONDS
from kvpool_agent.policy.purposes import DEMAND, default_purposes, purposes
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of
from kvpool_contract.config import Drain, Loading, Prewarm, Replication

BUSY_TRIES = default_purposes()[DEMAND].receiving.busy_tries


@pytest.fixture
def slab() -> Slab:
    return new_slab()


def fetcher(source: Source) -> tuple[Fetcher, Account]:
    account = Account()
    return Fetcher(source, Breakers(account), account, unpaced), account  # type: ignore[arg-type]


def test_fetched_blocks_are_in_the_arena_with_their_bytes_parents_and_tags(slab: Slab) -> None:
    made, account = fetcher(Source())
    arrived: list[int] = []
    assert made.fetch(slab, "peer", wanted(0, 1, 2), "demand", soon(), arrived.append) == ""
    _, blocks = slab.arena.lease([key(0), key(1)], 0.0, 1.0)
    for n, block in enumerate(blocks):
        assert block is not None and block.foreign
        assert bytes(slab.view(block.slot)) == key(n) * (SLOT // 16)
        assert block.tag == tag_of(key(n), slab.view(block.slot))
        assert block.parent == (key(n - 1) if n else b"")
    assert arrived == [SLOT] * 3
    assert (account.transfers["demand_in"].blocks, account.transfers["demand_in"].bytes) == (3, 3 * SLOT)


def test_what_came_before_a_fault_is_kept_and_the_other_slots_are_free_again(slab: Slab) -> None:
    def breaks(index: int, one: bytes, land: Land) -> None:
        if index == 2:
            raise PeerError("connection closed by the peer")
        whole(index, one, land)

    made, account = fetcher(Source(breaks))
    assert made.fetch(slab, "peer", wanted(0, 1, 2, 3), "demand", soon()) == "transfer_failed"
    assert (held(slab), slab.arena.used_slots) == ([0, 1], 2)
    assert account.counters == {"fetch_transfer_failed": 1}


@pytest.mark.parametrize(
    ("error", "late", "reason"),
    [
        (PeerBusy(0.0), False, "busy"),
        (PeerError("reset"), False, "transfer_failed"),
        (PeerError("timed out"), True, "deadline"),
    ],
    ids=["busy", "reset", "late"],
)
def test_each_fault_has_its_reason(slab: Slab, error: PeerError, late: bool, reason: str) -> None:
    def fails(*_: object) -> None:
        raise error

    made, _ = fetcher(Source(fails))
    assert made.fetch(slab, "peer", wanted(0), "demand", 0.0 if late else soon()) == reason
    assert slab.arena.used_slots == 0


@pytest.mark.parametrize("bad", [{"tag": b"x" * 16}, {"length": SLOT // 2}, {"length": 2 * SLOT}], ids=str)
def test_bytes_of_another_tag_or_length_are_never_published(slab: Slab, bad: dict[str, object]) -> None:
    def second_bad(index: int, one: bytes, land: Land) -> None:
        whole(index, one, land, **(bad if index == 1 else {}))  # type: ignore[arg-type]

    made, account = fetcher(Source(second_bad))
    assert made.fetch(slab, "peer", wanted(0, 1, 2), "demand", soon()) == "transfer_failed"
    assert (held(slab), slab.arena.used_slots) == ([0], 1)
    assert account.counters.get("tag_failures", 0) == ("tag" in bad)


def test_a_source_that_stopped_at_its_bounds_is_named_busy(slab: Slab) -> None:
    made, _ = fetcher(Source(lambda index, one, land: whole(index, one, land) if index < 2 else None, stopped=True))
    assert made.fetch(slab, "peer", wanted(0, 1, 2), "demand", soon()) == "busy"
    assert held(slab) == [0, 1]


def test_a_source_that_lost_blocks_meanwhile_is_named_evicted(slab: Slab) -> None:
    made, _ = fetcher(Source(lambda index, one, land: whole(index, one, land) if index != 1 else None))
    assert made.fetch(slab, "peer", wanted(0, 1, 2), "demand", soon()) == "evicted"
    assert (held(slab), slab.arena.used_slots) == ([0, 2], 2)


def test_without_room_for_all_the_beginning_is_fetched(slab: Slab) -> None:
    slab.arena.reserve(SLOTS - 2, 0.0)
    source = Source()
    made, _ = fetcher(source)
    assert made.fetch(slab, "peer", wanted(0, 1, 2, 3), "demand", soon()) == "no_room"
    assert (held(slab), source.asked) == ([0, 1], [[key(0), key(1)]])


def test_a_worker_that_was_just_restarted_fetches_nothing_and_says_so() -> None:
    source, slab = Source(), new_slab(writable_at=time.monotonic() + 1000)
    made, _ = fetcher(source)
    assert made.fetch(slab, "peer", wanted(0, 1), "demand", soon()) == "just_restarted"
    assert source.asked == []


def test_blocks_that_are_here_are_not_fetched(slab: Slab) -> None:
    source = Source()
    made, _ = fetcher(source)
    made.fetch(slab, "peer", wanted(1), "demand", soon())
    made.fetch(slab, "peer", wanted(0, 1, 2), "demand", soon())
    made.fetch(slab, "peer", wanted(0, 1, 2), "demand", soon())
    assert source.asked == [[key(1)], [key(0), key(2)]]


def test_a_block_on_its_way_is_waited_for_and_fetched_once(slab: Slab) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(index: int, one: bytes, land: Land) -> None:
        inside.set()
        assert go_on.wait(10)
        whole(index, one, land)

    source = Source(slow)
    made, _ = fetcher(source)
    first = threading.Thread(target=made.fetch, args=(slab, "peer", wanted(0, 1), "prewarm", soon()))
    first.start()
    assert inside.wait(10)
    assert made.fetch(slab, "peer", wanted(0, 1), "demand", soon()) == ""
    assert source.asked == [[key(0), key(1)]]
    go_on.set()
    made.in_flight.wait_for([key(0), key(1)], soon())
    assert held(slab) == [0, 1]
    first.join()


def test_a_block_that_came_in_between_two_looks_is_not_fetched_again(
    slab: Slab, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source()
    made, _ = fetcher(source)
    claim = made.in_flight.claim

    def after_another_fetch(blocks: Sequence[Wanted]) -> list[Wanted]:
        monkeypatch.setattr(made.in_flight, "claim", claim)
        made.fetch(slab, "peer", wanted(0, 1), "prewarm", soon())
        return claim(blocks)

    monkeypatch.setattr(made.in_flight, "claim", after_another_fetch)
    assert made.fetch(slab, "peer", wanted(0, 1), "demand", soon()) == ""
    assert source.asked == [[key(0), key(1)]]


def test_many_askers_at_once_fetch_each_block_once(slab: Slab) -> None:
    source = Source()
    made, _ = fetcher(source)
    start = threading.Barrier(8)

    def ask() -> None:
        start.wait(10)
        made.fetch(slab, "peer", wanted(*range(6)), "demand", soon())

    for _ in range(20):
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(one for keys in source.asked for one in keys) == [key(n) for n in range(6)]
        source.asked.clear()
        for n in range(6):
            slab.arena.drop(key(n))


def test_waiting_for_a_block_on_its_way_ends_at_the_deadline() -> None:
    flight = InFlight()
    mine = flight.claim(wanted(0, 1))
    assert flight.claim(wanted(1, 2)) == wanted(2)
    flight.wait_for([key(1)], time.monotonic() + 0.01)
    flight.settle(mine)
    flight.wait_for([key(1)], soon())
    assert flight.claim(wanted(1)) == wanted(1)


def test_a_peer_that_fails_again_and_again_is_not_asked_until_its_pause_is_over(slab: Slab) -> None:
    now = 0.0
    account = Account()
    breakers = Breakers(account, lambda: now)
    source = Source(lambda *_: None)  # promises all and sends nothing
    made = Fetcher(source, breakers, account)  # type: ignore[arg-type]
    reasons = [made.fetch(slab, "peer", wanted(0), "demand", soon()) for _ in range(5)]
    assert reasons == ["evicted"] * 3 + ["breaker_open"] * 2
    assert (len(source.asked), slab.arena.used_slots, breakers.view("peer")) == (3, 0, ("open", 3))
    assert made.fetch(slab, "other", wanted(1), "demand", soon()) == "evicted"  # another's breaker is its own
    assert account.counters == {"breaker_opened": 1, "fetch_breaker_open": 2}
    now = FIRST_PAUSE_SECONDS
    source.send = whole
    assert made.fetch(slab, "peer", wanted(0), "demand", soon()) == ""
    assert breakers.view("peer") == ("closed", 0)


def test_bytes_that_fail_their_tag_count_against_the_peer(slab: Slab) -> None:
    made, account = fetcher(Source(lambda index, one, land: whole(index, one, land, tag=b"x" * 16)))
    for _ in range(4):
        made.fetch(slab, "peer", wanted(0), "demand", soon())
    assert account.counters["tag_failures"] == 3
    assert account.counters["breaker_opened"] == 1


def test_whoever_comes_to_an_address_next_starts_with_a_clean_slate() -> None:
    breakers = Breakers(Account())
    for _ in range(FAILURES):
        breakers.failed("address")
    assert not breakers.usable("address")
    breakers.forget("address")
    assert breakers.usable("address") and breakers.begin("address")


def test_a_busy_source_is_asked_again_after_the_pause_that_it_named(
    slab: Slab, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(fetch_flow, "time", Clock(pauses))
    refused = iter([0.3, 0.0, 60.0, float("nan")])

    def busy_at_first(index: int, one: bytes, land: Land) -> None:
        if (pause := next(refused, None)) is not None:
            raise PeerBusy(pause)
        whole(index, one, land)

    source = Source(busy_at_first)
    made, account = fetcher(source)
    assert made.fetch(slab, "peer", wanted(0, 1), "demand", time.monotonic() + 20) == ""
    assert (held(slab), len(source.asked)) == ([0, 1], 5)
    assert pauses == [
        0.3,
        LEAST_PAUSE_SECONDS,
        LONGEST_PAUSE_SECONDS,
        LEAST_PAUSE_SECONDS,
    ]  # what a source may ask for is bounded
    assert account.counters == {"fetch_asked_again": 4}


def test_a_source_that_stays_busy_is_asked_a_bounded_number_of_times(
    slab: Slab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> None:
        raise PeerBusy(0.2)

    pauses: list[float] = []
    monkeypatch.setattr(fetch_flow, "time", Clock(pauses))
    source = Source(busy)
    made, account = fetcher(source)
    assert made.fetch(slab, "peer", wanted(0), "demand", soon()) == "busy"
    assert (len(source.asked), len(pauses), slab.arena.used_slots) == (BUSY_TRIES + 1, BUSY_TRIES, 0)
    assert account.counters == {"fetch_asked_again": BUSY_TRIES, "fetch_busy": 1}
    assert made.fetch(slab, "peer", wanted(0), "prewarm", soon()) == "busy"  # asks again at a pace of its own
    assert (len(source.asked), len(pauses)) == (BUSY_TRIES + 2, BUSY_TRIES)


def test_a_busy_source_is_not_waited_for_beyond_the_deadline(slab: Slab, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> None:
        raise PeerBusy(1.5)

    pauses: list[float] = []
    clock = Clock(pauses)
    monkeypatch.setattr(fetch_flow, "time", clock)
    made, _ = fetcher(Source(busy))
    assert made.fetch(slab, "peer", wanted(0), "demand", clock.monotonic() + 4.0) == "busy"
    assert pauses == [1.5, 1.5]


def test_what_a_warm_up_has_not_asked_for_yet_a_request_fetches_at_once(slab: Slab) -> None:
    source, account = Source(), Account()
    crawling = purposes(Prewarm(maxBytesPerSecond=1), Loading(), Drain(), Replication())
    made = Fetcher(source, Breakers(account), account, lambda: crawling)  # type: ignore[arg-type]
    waiting = threading.Thread(target=made.fetch, args=(slab, "peer", wanted(0, 1), "prewarm", time.monotonic() + 2))
    waiting.start()
    wait_for("waits for its rate", lambda: account.counters.get("bound_prewarm_in_rate"), 10, 0.005)
    assert made.fetch(slab, "peer", wanted(0, 1), "demand", soon()) == ""
    assert (held(slab), source.asked) == ([0, 1], [[key(0), key(1)]])
    waiting.join()
    assert len(source.asked) == 1


def test_each_block_that_has_come_is_told_by_its_key_once_it_was_checked(slab: Slab) -> None:
    def second_bad(index: int, one: bytes, land: Land) -> None:
        whole(index, one, land, tag=b"x" * 16 if index == 1 else b"")

    made, _ = fetcher(Source(second_bad))
    checked: list[bytes] = []
    made.fetch(slab, "peer", wanted(0, 1, 2), "demand", soon(), checked=checked.append)
    assert checked == [key(0)]


def test_what_a_fetch_for_a_request_costs_is_measured_and_a_wait_in_vain_too(slab: Slab) -> None:
    made, _ = fetcher(Source())
    assert made.fetch(slab, "peer", wanted(0, 1, 2), "demand", soon()) == ""
    assert made.fetch(slab, "peer", wanted(3), "prewarm", soon()) == ""
    (path,) = made.costs.snapshot().paths.values()
    assert (path.moved, path.queue.count, path.rate.count) == (1, 1, 1)
    assert path.rate.p50 > 0

    def silent(_index: int, _one: bytes, _land: Land) -> None:
        time.sleep(0.05)
        raise PeerError("the deadline has passed")

    late, _ = fetcher(Source(silent))
    assert late.fetch(slab, "peer", wanted(5), "demand", time.monotonic() + 0.01) == "deadline"
    (path,) = late.costs.snapshot().paths.values()
    assert path.queue.p50 >= 0.04 and path.rate.p50 <= SLOT / 0.04
