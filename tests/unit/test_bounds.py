"""Bounds of each purpose, at both ends: no more than so much at a time, whoever asks, and each one hit is counted."""

import threading
import time
from collections.abc import Callable, Sequence

import pytest

from kvpool_agent.account import Account
from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.flows.fetch import Fetcher, Wanted
from kvpool_agent.flows.reading import Reading
from kvpool_agent.peer.bounds import Gate, Pace
from kvpool_agent.peer.connection import PeerBusy
from kvpool_agent.policy.breaker import FAILURES, FIRST_PAUSE_SECONDS
from kvpool_agent.policy.purposes import DEMAND, DRAIN, PREWARM, REPLICATE, Purposes, default_purposes, purposes
from kvpool_agent.store.arena import Arena
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of
from kvpool_contract.config import Drain, Loading, Prewarm, Replication

SLOT, SLOTS = 4096, 64
WAIT = 10.0
Land = Callable[[int, bytes, int, Callable[[memoryview], None]], None]


def key(n: int) -> bytes:
    return bytes([n]) * 16


def slab_of(slots: int = SLOTS, arena: Arena | None = None) -> Slab:
    return Slab(b"f" * 16, {}, SLOT, ArenaMemory.anonymous(slots * SLOT), Arena(slots) if arena is None else arena)


def filled(blocks: int, slots: int = SLOTS) -> Slab:
    slab = slab_of(slots)
    for n, slot in enumerate(slab.arena.reserve(blocks, 0.0)):
        slab.arena.commit(key(n), b"", slot, tag_of(key(n), slab.view(slot)), foreign=False)
    return slab


def soon() -> float:
    return time.monotonic() + WAIT


# -- the table -----------------------------------------------------------------------------------------


def test_every_purpose_leaves_room_for_the_others_and_lets_one_block_pass() -> None:
    table = default_purposes()
    assert sum(p.receiving.arena_percent for p in table.values()) < 100  # stores find room, too
    assert sum(p.sending.arena_percent for p in table.values()) < 50
    for purpose in table.values():
        assert purpose.receiving.part_blocks(1 << 30, 8 << 30) >= 1
        assert purpose.sending.window_blocks(1 << 30, 8 << 30) >= 1


def test_the_table_follows_the_configuration() -> None:
    prewarm = Prewarm(maxBytesPerSecond=5, maxStreams=3, sourceMaxStreams=7)
    table = purposes(
        prewarm, Loading(maxBytesPerSecond=9), Drain(maxBytesPerSecond=11), Replication(maxBytesPerSecond=13)
    )
    newcomer, source = table[PREWARM].receiving, table[PREWARM].sending
    assert (newcomer.streams, newcomer.bytes_per_second) == (3, 5)
    assert (source.streams, source.bytes_per_second) == (7, 5)
    assert (table[DEMAND].receiving.bytes_per_second, table[DEMAND].sending.bytes_per_second) == (9, 9)
    assert (table[DRAIN].receiving.bytes_per_second, table[DRAIN].sending.bytes_per_second) == (11, 11)
    assert (table[REPLICATE].receiving.bytes_per_second, table[REPLICATE].sending.bytes_per_second) == (13, 13)


def test_a_part_holds_a_tenth_of_a_second_of_a_bounded_rate() -> None:
    bounded = purposes(Prewarm(), Loading(maxBytesPerSecond=100 * SLOT), Drain(), Replication())[DEMAND].receiving
    assert bounded.part_blocks(SLOT, 1 << 30) == 10
    assert default_purposes()[DEMAND].receiving.part_blocks(SLOT, 1 << 30) == (1 << 30) // 8 // SLOT


# -- a gate --------------------------------------------------------------------------------------------


def test_a_gate_without_a_queue_refuses_at_once_and_counts_why() -> None:
    account = Account()
    gate = Gate("x", account.count)
    with gate.entered(6, streams=2, room=10) as first:
        with gate.entered(5, streams=2, room=10) as too_many_bytes:
            assert (first, too_many_bytes) == (True, False)
        with gate.entered(4, streams=2, room=10) as second, gate.entered(0, streams=2, room=10) as third:
            assert (second, third) == (True, False)
    with gate.entered(99, streams=2, room=10) as alone:
        assert alone  # one block at a time always passes
    assert account.counters == {"bound_x_bytes": 1, "bound_x_streams": 1}


def test_who_waits_at_a_gate_gets_in_in_order_and_no_more_wait_than_may() -> None:
    account = Account()
    gate = Gate("x", account.count)
    order: list[int] = []
    inside = threading.Event()
    go_on = threading.Event()

    def hold() -> None:
        with gate.entered(1, streams=1, room=1):
            inside.set()
            assert go_on.wait(WAIT)

    def ask(n: int, size: int) -> None:
        with gate.entered(size, streams=1, room=1, queue=3, deadline=soon()) as found:
            assert found
            order.append(n)

    threads = [threading.Thread(target=hold)]
    threads[0].start()
    assert inside.wait(WAIT)
    for n, size in enumerate((1, 9, 1)):  # a large one is not overtaken
        threads.append(threading.Thread(target=ask, args=(n, size)))
        threads[-1].start()
        until(lambda n=n: len(gate._waiting) == n + 1)  # type: ignore[misc]
    with gate.entered(1, streams=1, room=1, queue=3, deadline=soon()) as fourth:
        assert not fourth
    go_on.set()
    for thread in threads:
        thread.join(WAIT)
    assert order == [0, 1, 2]
    assert account.counters == {"bound_x_streams": 4, "bound_x_queue": 1}


def test_waiting_at_a_gate_ends_at_the_deadline() -> None:
    gate = Gate("x", lambda _: None)
    with (
        gate.entered(1, streams=1, room=1),
        gate.entered(1, streams=1, room=1, queue=9, deadline=time.monotonic() + 0.01) as late,
    ):
        assert not late
    with gate.entered(1, streams=1, room=1) as after:
        assert after


def test_a_pace_follows_its_rate_and_owes_nothing_for_what_was_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now, rate = [0.0], [0.0]

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now[0]

        @staticmethod
        def sleep(seconds: float) -> None:
            now[0] += seconds
            if now[0] > 5.0:
                rate[0] = 100.0

    monkeypatch.setattr("kvpool_agent.peer.bounds.time", Clock)
    account = Account()
    pace = Pace("x", account.count)
    assert pace.wait(1000, lambda: rate[0], 10, 1.0)
    assert now == [0.0]  # no bound
    rate[0] = 10.0
    assert not pace.wait(100, lambda: rate[0], 1, 2.0)
    assert now == [2.0]
    assert not pace.wait(0, lambda: rate[0], 1, 3.0, hopeful=False)
    assert now == [2.0]  # not within a second: it does not wait for that
    assert pace.wait(0, lambda: rate[0], 1, 100.0)
    assert 5.0 < now[0] < 6.0  # the rate is ten times as high by then
    began = now[0]
    pace.wait(1000, lambda: rate[0], 1, began)
    pace.give_back(1000, rate[0], 1)
    assert pace.wait(0, lambda: rate[0], 1, began)
    assert now[0] == began
    assert account.counters == {"bound_x_rate": 4}


# -- receiving -----------------------------------------------------------------------------------------


class Source:
    """A dialer whose peer has every block; `before` runs before each."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.before: Callable[[], None] = lambda: None

    def fetch(
        self, address: str, fingerprint: bytes, keys: Sequence[bytes], purpose: str, deadline: float, land: Land
    ) -> None:
        self.asked.append(len(keys))
        for index, one in enumerate(keys):
            self.before()
            data = one * (SLOT // 16)

            def read_into(view: memoryview, data: bytes = data) -> None:
                view[:] = data

            land(index, tag_of(one, memoryview(data)), SLOT, read_into)


def wanted(numbers: Sequence[int]) -> list[Wanted]:
    return [Wanted(key(n), b"") for n in numbers]


def fetcher(source: Source, table: Callable[[], Purposes] = default_purposes) -> tuple[Fetcher, Account, Breakers]:
    account = Account()
    breakers = Breakers(account)
    return Fetcher(source, breakers, account, table), account, breakers  # type: ignore[arg-type]


def test_a_long_demand_fetch_goes_in_parts_and_several_never_reserve_more_than_half_of_the_arena() -> None:
    slab, source = slab_of(), Source()
    most = 0
    lock = threading.Lock()

    def look() -> None:
        nonlocal most
        with lock:
            most = max(most, slab.arena.used_slots - len(slab.arena))

    source.before = look
    made, account, _ = fetcher(source)
    assert made.fetch(slab, "peer", wanted(range(20)), "demand", soon()) == ""
    assert (source.asked, most, len(slab.arena)) == ([8, 8, 4], 8, 20)

    all_in = threading.Barrier(4)  # four parts of eight are half of the arena; a fifth waits for one of them
    source.before = lambda: (look(), slow())[0]
    first = threading.local()

    def slow() -> None:
        if not getattr(first, "waited", False):
            first.waited = True
            all_in.wait(WAIT)
            until(lambda: account.counters.get("bound_demand_in_bytes") == 4)

    threads = [
        threading.Thread(target=made.fetch, args=(slab, "peer", wanted(range(a, a + 8)), "demand", soon()))
        for a in range(20, 20 + 8 * 8, 8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert most == 32
    assert account.counters == {"bound_demand_in_bytes": 4}
    assert account.transfers["demand_in"].blocks == 20 + 64


def test_fetches_that_find_the_queue_full_are_refused_and_counted() -> None:
    slab, source = slab_of(), Source()
    go_on, inside = threading.Event(), threading.Semaphore(0)

    def hold() -> None:
        inside.release()
        assert go_on.wait(WAIT)

    source.before = hold
    made, account, _ = fetcher(
        source, lambda: purposes(Prewarm(maxStreams=1, maxBytesPerSecond=0), Loading(), Drain(), Replication())
    )
    threads = [
        threading.Thread(target=made.fetch, args=(slab, "peer", wanted([n]), "prewarm", soon())) for n in range(2)
    ]
    threads[0].start()
    assert inside.acquire(timeout=WAIT)
    threads[1].start()
    until(lambda: account.counters.get("bound_prewarm_in_streams") == 1)
    assert made.fetch(slab, "peer", wanted([2]), "prewarm", soon()) == "busy"
    assert account.counters == {"bound_prewarm_in_streams": 2, "bound_prewarm_in_queue": 1, "fetch_busy": 1}
    demand = threading.Thread(target=made.fetch, args=(slab, "peer", wanted([3]), "demand", soon()))
    demand.start()
    assert inside.acquire(timeout=WAIT)  # a request is asked for at once, whatever the warm-up does
    go_on.set()
    for thread in (*threads, demand):
        thread.join(WAIT)
    assert len(slab.arena) == 3


def test_an_open_breaker_is_asked_before_anything_is_evicted() -> None:
    slab = filled(SLOTS)
    made, account, breakers = fetcher(Source())
    for _ in range(FAILURES):
        breakers.failed("peer")
    assert made.fetch(slab, "peer", wanted([100]), "demand", soon()) == "breaker_open"
    assert (slab.arena.evicted, len(slab.arena)) == (0, SLOTS)
    assert made.fetch(slab, "other", wanted([100]), "demand", soon()) == ""  # a peer that may be asked costs a block
    assert (slab.arena.evicted, len(slab.arena)) == (1, SLOTS)
    assert account.counters["fetch_breaker_open"] == 1


def test_a_try_of_a_half_open_peer_that_found_no_slot_leaves_the_next_one_its_try() -> None:
    now = 0.0
    account = Account()
    breakers = Breakers(account, lambda: now)
    made = Fetcher(Source(), breakers, account)  # type: ignore[arg-type]
    for _ in range(FAILURES):
        breakers.failed("peer")
    now = FIRST_PAUSE_SECONDS
    held_back = slab_of(arena=Arena(SLOTS, writable_at=time.monotonic() + 1000))
    assert made.fetch(held_back, "peer", wanted([1]), "demand", soon()) == "just_restarted"
    assert made.fetch(slab_of(), "peer", wanted([1]), "demand", soon()) == ""
    assert breakers.view("peer") == ("closed", 0)


# -- sending -------------------------------------------------------------------------------------------


def reading(table: Callable[[], Purposes] = default_purposes) -> tuple[Reading, Account]:
    account = Account()
    return Reading(account, table), account


def may_evict(slab: Slab) -> int:
    """How many blocks a writer could take now; none is taken."""
    free = slab.arena.slot_count - slab.arena.used_slots
    slots = slab.arena.reserve(slab.arena.slot_count, time.monotonic())
    slab.arena.give_back(slots)
    return len(slots) - free


def test_a_reader_keeps_only_its_next_blocks_and_gets_all_that_are_there_when_it_comes_to_them() -> None:
    slab = filled(40)
    made, account = reading()  # of 64 slots a quarter over eight streams: two at a time
    with made.blocks(slab, [key(n) for n in range(40)], "demand") as blocks:
        got = [next(blocks)[0] for _ in range(2)]
        assert may_evict(slab) == 38
        assert got == [0, 1]
        assert [index for index, *_ in blocks] == []  # the rest was evicted meanwhile, and nothing else was
    assert account.transfers["demand_out"].blocks == 2
    assert may_evict(slab) == 2


def test_readers_of_a_purpose_keep_no_more_than_its_part_of_the_arena() -> None:
    slab = filled(8, slots=8)
    made, account = reading()  # a tenth of eight slots is none: one reader with one block
    with made.blocks(slab, [key(0)], "prewarm") as first:
        assert next(first)[0] == 0
        with pytest.raises(PeerBusy), made.blocks(slab, [key(1)], "prewarm"):
            raise AssertionError
        with made.blocks(slab, [key(1)], "demand") as other:
            assert next(other)[0] == 0
    assert account.counters == {"bound_prewarm_kept_bytes": 1}
    with made.blocks(slab, [key(1)], "prewarm") as after:
        assert next(after)[0] == 0


def test_a_reader_whose_lease_has_ended_gets_what_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvpool_agent.flows import reading as flow

    class Later:
        now = 0.0

        @classmethod
        def monotonic(cls) -> float:
            return cls.now

    monkeypatch.setattr(flow, "time", Later)
    slab = filled(6, slots=16)
    made, account = reading(lambda: purposes(Prewarm(), Loading(), Drain(), Replication()))
    monkeypatch.setattr(type(default_purposes()[DEMAND].sending), "window_blocks", lambda *_: 6)
    with made.blocks(slab, [key(n) for n in range(6)], "demand") as blocks:
        assert [next(blocks)[0] for _ in range(2)] == [0, 1]
        Later.now = 1000.0
        slab.arena.drop(key(3))
        assert [index for index, *_ in blocks] == [2, 4, 5]
    assert account.counters == {"read_leases_ended": 1}


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)
