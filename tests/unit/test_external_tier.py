"""The external store as a tier, with a store that is a dictionary: what is written, once, by whom; bounds; faults."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from replica import wait_for

from kvpool_agent.account import Account
from kvpool_agent.store.arena import Arena
from kvpool_agent.store.disk.pending import ARENA_PART, MAX_KEYS
from kvpool_agent.store.external import access
from kvpool_agent.store.external.access import Access
from kvpool_agent.store.external.objects import BUSY, ERROR, FULL, REFUSED, SLOW, StoreError
from kvpool_agent.store.external.tier import ExternalTier
from kvpool_agent.store.index import EVERY_DEPTH
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of
from kvpool_contract.external import Store

SLOT, SLOTS = 4096, 64


def key(n: int) -> bytes:
    return n.to_bytes(8, "big") * 2


class Remembered:
    """An `Objects` in memory. `fault`: what a call raises now; `gate`: calls wait for it."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}
        self.calls: list[str] = []
        self.renewed: list[str] = []
        self.fault: Callable[[str], None] = lambda _call: None
        self.gate = threading.Event()
        self.gate.set()

    def _begin(self, call: str) -> None:
        self.calls.append(call)
        self.gate.wait(20)
        self.fault(call)

    def ping(self) -> None:
        self._begin("ping")

    def held(self, names: Sequence[str]) -> list[bool]:
        self._begin("held")
        return [name in self.found for name in names]

    def read(self, name: str, begin: int, length: int) -> bytes:
        self._begin("read")
        return self.found.get(name, b"")[begin : begin + length]

    def write(self, name: str, data: bytes) -> None:
        self._begin("write")
        self.found[name] = data

    def renew(self, names: Sequence[str]) -> None:
        self._begin("renew")
        self.renewed += names

    def remove(self, name: str) -> None:
        self._begin("remove")
        self.found.pop(name, None)

    def disconnect(self) -> None:
        self.calls.append("disconnect")


class Beside:
    """A slab and its tier."""

    def __init__(
        self, objects: Remembered, *, declared_alone: bool = False, told_depth: int = EVERY_DEPTH, **store: object
    ) -> None:
        self.objects, self.account = objects, Account()
        config = Store(type="Valkey", url="valkey://a:1", prefix="kv/", **store)  # type: ignore[arg-type]
        arena = Arena(SLOTS, declared_alone=declared_alone, told_depth=told_depth)
        self.slab = Slab(b"f" * 16, {}, SLOT, ArenaMemory.anonymous(SLOT * SLOTS), arena)
        self.tier = ExternalTier(config, objects, self.account, lambda: [self.slab], "chat", "a")
        self.slab.below, self.slab.arena.spill = self.tier, lambda block: self.tier.evicting(self.slab, block)

    def start(self) -> "Beside":
        self.tier.start()
        wait_for("it is reached", lambda: self.tier.access.ready, 20, 0.01)
        return self

    def put(self, *numbers: int, foreign: bool = False) -> None:
        for n in numbers:
            (slot,) = self.slab.arena.reserve(1, time.monotonic())
            self.slab.view(slot)[:] = key(n) * (SLOT // 16)
            tag = tag_of(key(n), self.slab.view(slot))
            self.slab.arena.commit(key(n), b"", slot, tag, foreign=foreign)

    def use_again(self, *numbers: int) -> None:
        keys = [key(n) for n in numbers]
        self.tier.used(self.slab, keys, keys)

    def lies_there(self, *numbers: int) -> list[bool]:
        return [self.tier.name_of(self.slab, key(n)) in self.objects.found for n in numbers]

    def until_there(self, *numbers: int) -> None:
        wait_for(f"{numbers} are written", lambda: all(self.lies_there(*numbers)), 20, 0.01)
        wait_for("the queue is empty", lambda: not self.tier.waiting, 20, 0.01)

    def until_written(self, blocks: int) -> None:
        def written() -> int:
            moved = self.account.transfers.get("external_out")
            return moved.blocks if moved is not None else 0

        wait_for(f"{blocks} are counted", lambda: written() == blocks, 20, 0.01)

    def counted(self, word: str) -> int:
        return self.account.counters.get(word, 0)


@pytest.fixture
def beside() -> Iterator[Beside]:
    made = Beside(Remembered()).start()
    yield made
    made.objects.gate.set()
    made.tier.close()


def test_what_lies_deeper_than_others_are_told_of_is_not_written() -> None:
    made = Beside(Remembered(), told_depth=2).start()
    made.put(1, 2, 3)
    made.use_again(1, 2, 3)
    made.until_there(1, 2)
    made.tier.close()
    assert made.lies_there(1, 2, 3) == [True, True, False]


def test_own_blocks_are_written_once_and_copies_are_not(beside: Beside) -> None:
    beside.put(1, 2)
    beside.put(3, foreign=True)
    beside.use_again(1, 2, 3)
    beside.until_there(1, 2)
    beside.use_again(1, 2, 3)
    beside.put(4)
    beside.use_again(4)
    beside.until_there(4)
    beside.until_written(3)
    assert beside.lies_there(3) == [False] and beside.objects.calls.count("write") == 3


def test_what_others_may_not_be_told_of_is_not_written_either() -> None:
    beside = Beside(Remembered(), declared_alone=True).start()
    beside.slab.arena.declare(frozenset([key(2)]))
    beside.put(1, 2)
    beside.use_again(1, 2)
    beside.until_there(2)
    assert beside.lies_there(1) == [False]
    beside.tier.close()


def test_what_another_member_has_written_lives_longer_and_is_not_written_again(beside: Beside) -> None:
    name = beside.tier.name_of(beside.slab, key(1))
    beside.objects.found[name] = b"there"
    beside.put(1, 2)
    beside.use_again(1, 2)
    beside.until_there(2)
    assert (beside.objects.found[name], beside.objects.renewed) == (b"there", [name])


def test_while_it_is_paused_or_not_reached_nothing_is_queued(beside: Beside) -> None:
    beside.put(1, 2)
    beside.tier.paused = True
    beside.use_again(1)
    beside.tier.paused = False
    beside.tier.access.failed(StoreError(SLOW, ""))
    beside.use_again(1)
    assert beside.tier.waiting == 0


def test_what_waits_is_bounded_and_holds_nothing_in_the_arena(beside: Beside) -> None:
    beside.objects.gate.clear()
    beside.use_again(*range(1000, 1000 + MAX_KEYS + 40))
    wait_for("some are let go", lambda: beside.counted("store_dropped_queue_full") >= 24, 20, 0.01)
    assert beside.tier.waiting <= MAX_KEYS and beside.slab.arena.leased_blocks == 0


def test_a_block_that_is_evicted_before_its_turn_leaves_its_slot_within_bounds(beside: Beside) -> None:
    beside.objects.gate.clear()
    beside.use_again(999)  # at which the writer waits
    wait_for("it is asked about", lambda: beside.objects.calls[-1] == "held", 20, 0.01)
    beside.put(*range(SLOTS))
    beside.use_again(*range(SLOTS))
    slots = beside.slab.arena.reserve(SLOTS, time.monotonic())
    taken = SLOTS // ARENA_PART
    assert len(slots) == SLOTS - taken
    beside.slab.arena.give_back(slots)
    beside.objects.gate.set()
    wait_for("they are written", lambda: beside.account.transfers.get("external_out") is not None, 20, 0.01)
    wait_for("all is done", lambda: not beside.tier.waiting and not beside.slab.arena.used_slots, 20, 0.01)
    assert sum(beside.lies_there(*range(SLOTS))) == taken


def test_a_store_that_fails_a_write_is_left_alone_until_it_answers(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "FIRST_PAUSE_SECONDS", 0.01)

    def refuse(call: str) -> None:
        if call == "write":
            raise StoreError(REFUSED, "no")

    beside.objects.fault = refuse
    beside.put(1, 2)
    beside.use_again(1, 2)
    wait_for("it is told", lambda: beside.counted("store_dropped_failed") == 2, 20, 0.01)
    assert beside.counted(REFUSED) == 1 and "disconnect" in beside.objects.calls
    beside.objects.fault = lambda _call: None
    wait_for("it is asked again", lambda: beside.tier.access.ready, 20, 0.01)
    beside.use_again(1, 2)
    beside.until_there(1, 2)


def test_a_full_one_is_read_and_written_no_more_for_a_while(beside: Beside) -> None:
    def full(call: str) -> None:
        if call == "write":
            raise StoreError(FULL, "OOM")

    beside.objects.fault = full
    beside.put(1, 2, 3)
    beside.use_again(1, 2, 3)
    wait_for("let go", lambda: beside.counted("store_dropped_failed") == 3, 20, 0.01)
    assert beside.tier.access.told()[:2] == ("ready", FULL)
    assert beside.objects.calls.count("write") == 1


def test_at_the_end_what_waits_is_written_and_the_hot_list_left(beside: Beside) -> None:
    beside.objects.gate.clear()
    beside.put(1, 2)
    with beside.slab.heat_lock:
        beside.slab.heat.count([key(1), key(2)], time.monotonic())
    beside.use_again(1, 2)
    threading.Timer(0.05, beside.objects.gate.set).start()
    beside.tier.close(20.0)
    assert beside.tier.ended.is_set() and beside.lies_there(1, 2) == [True, True]
    listed = beside.tier.read_list(beside.slab, time.monotonic() + 5)
    assert [block.key for block in listed] == [key(1), key(2)]


def test_so_many_calls_may_wait_and_no_more() -> None:
    objects = Remembered()
    made = Access(objects, Account())
    made.look()
    assert made.ready
    objects.gate.clear()
    with pytest.raises(StoreError) as raised:
        for _ in range(1000):
            made.begin(lambda objects: objects.held(["a"]))
    assert raised.value.word == BUSY and made.ready
    objects.gate.set()


def test_a_caller_waits_until_its_own_deadline_and_an_unknown_fault_is_one() -> None:
    objects, account = Remembered(), Account()
    made = Access(objects, account)
    made.look()
    objects.gate.clear()
    with pytest.raises(StoreError) as raised:
        made.call(lambda objects: objects.held(["a"]), time.monotonic() + 0.05)
    assert raised.value.word == SLOW and made.ready  # whether it was too long is for the caller to say
    objects.gate.set()

    def broken(_call: str) -> None:
        raise ValueError("secret")

    objects.fault = broken
    with pytest.raises(StoreError) as raised:
        made.call(lambda objects: objects.held(["a"]), time.monotonic() + 20)
    assert (raised.value.word, raised.value.detail) == (ERROR, "ValueError") and not made.ready
    with pytest.raises(StoreError):
        made.begin(lambda objects: objects.held(["a"]))
    assert objects.calls[-1] == "disconnect"


def test_a_call_whose_connection_was_ended_by_anothers_failure_is_no_fault_of_its_own() -> None:
    objects, account = Remembered(), Account()
    made = Access(objects, account)
    made.look()
    cut, under_way = threading.Event(), threading.Barrier(2)

    def ended(_call: str) -> None:
        under_way.wait(20)
        assert cut.wait(20)
        raise ValueError("I/O operation on closed file")  # as sockets say that another thread closes

    objects.fault = ended
    other = made.begin(lambda found: found.read("other", 0, 1))
    under_way.wait(20)
    made.failed(StoreError(SLOW, "no answer"))
    cut.set()
    with pytest.raises(StoreError) as told:
        made.wait(other, time.monotonic() + 20)
    assert (told.value.word, made.told()[1]) == (SLOW, SLOW)
    assert {word: n for word, n in account.counters.items() if word.startswith("store_")} == {SLOW: 1}
