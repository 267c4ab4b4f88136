"""The warm-up's flow: whom it asks, when it is done, and why it is not; a source that is busy is asked again."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from replica import wait_for

from kvpool_agent.account import Account
from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.directory.members import Member
from kvpool_agent.flows import warmup
from kvpool_agent.flows.fetch import InFlight, Wanted
from kvpool_agent.flows.warmup import WarmupFlow
from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import PeerError
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.store.arena import Arena
from kvpool_agent.store.headers import SlotHeader
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slab
from kvpool_contract.config import AgentConfig, Members, Prewarm, Readiness, Tls

SLOT, SLOTS = 4096, 64


def key(n: int) -> bytes:
    return bytes([n]) * 16


class Pool:
    """Members, their hot lists, and fetches from them: all that the flow asks."""

    def __init__(self, blocks: int, members: int = 1) -> None:
        self.lists = {f"m{i}": [HotBlock(key(n), b"", 0, 1.0) for n in range(blocks)] for i in range(members)}
        self.answers: Callable[[str, Sequence[Wanted]], str] = lambda address, wanted: ""
        self.fetched: list[bytes] = []
        self.in_flight = InFlight()
        self.left: list[HotBlock] = []  # the external store's hot list
        self.external = self
        self._lock = threading.Lock()

    def settle(self, seconds: float) -> None:
        """Members are known at once."""

    def live(self, fingerprint: bytes) -> list[Member]:
        return [
            Member(name, True, frames.Welcome(1, name, "i", "Ready(warm)", fingerprint.hex(), len(blocks)))
            for name, blocks in self.lists.items()
        ]

    def hot(self, address: str | Slab, *_bounds: object) -> list[HotBlock]:
        if isinstance(address, Slab):  # asked of the store
            return self.left
        if self.lists[address] and self.lists[address][0].heat < 0:
            raise PeerError("timed out")
        return self.lists[address]

    def fetch(
        self,
        slab: Slab,
        address: str,
        wanted: Sequence[Wanted],
        purpose: str,
        deadline: float,
        arrived: Callable[[int], None],
    ) -> str:
        with self._lock:
            reason = self.answers(address, wanted)
            if not reason:
                self.fetched += [w.key for w in wanted]
                for _ in wanted:
                    arrived(slab.slot_bytes)
        return reason


def warm(
    pool: Pool, bounds: Prewarm | None = None, arena: Arena | None = None, **readiness: float | str
) -> tuple[str, WarmupFlow, Account]:
    """Runs a warm-up to its end; what it said, once."""
    arena = Arena(SLOTS) if arena is None else arena
    slab = Slab(b"f" * 16, {}, SLOT, ArenaMemory.anonymous(SLOT * SLOTS), arena)
    account = Account()
    config = AgentConfig(
        version=1,
        pool="pool",
        arenaBytes=SLOT * SLOTS,
        members=Members(file="none"),
        tls=Tls(mode="Disabled"),
        prewarm=bounds or Prewarm(),
        readiness=Readiness(**readiness),  # type: ignore[arg-type]
    )
    flow = WarmupFlow(
        lambda: config,
        pool,  # type: ignore[arg-type]
        pool,  # type: ignore[arg-type]
        pool,  # type: ignore[arg-type]
        Breakers(account),
        account,
    )
    said: list[str] = []
    done = threading.Event()
    began = time.monotonic()
    flow.start(slab, lambda reason: (said.append(reason), done.set()), lambda: began)
    assert done.wait(10)
    (reason,) = said
    return reason, flow, account


def test_a_warm_up_for_which_no_thread_is_left_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    assert warm(Pool(20))[0] == "warm_incomplete"


def test_all_blocks_of_all_members_are_fetched_once_and_the_end_has_no_reason() -> None:
    pool = Pool(20, members=3)
    reason, flow, account = warm(pool, targetPercent=100)
    assert reason == ""
    assert sorted(pool.fetched) == [key(n) for n in range(20)]
    progress = flow.progress.snapshot(0.0)
    assert (progress.planned_blocks, progress.loaded_blocks, progress.bytes) == (20, 20, 20 * SLOT)
    assert [event.word for event in account.events] == ["warm_begin", "warm_end"]


@pytest.mark.parametrize("pool", [Pool(0), Pool(5, members=0)], ids=["cold-member", "no-member"])
def test_with_nobody_to_warm_from_the_stores_hot_list_is_the_plan(pool: Pool) -> None:
    pool.left = [HotBlock(key(n), b"", 0, 1.0) for n in range(7)]
    asked: list[str] = []
    pool.answers = lambda address, wanted: asked.append(address) or ""
    reason, flow, _ = warm(pool, targetPercent=100)
    assert (reason, flow.progress.planned, set(asked)) == ("", 7, {"store"})


def test_where_a_member_has_a_hot_set_the_store_is_not_asked() -> None:
    pool = Pool(3)
    pool.left = [HotBlock(key(n), b"", 0, 9.0) for n in range(10, 17)]
    reason, _, _ = warm(pool, targetPercent=100)
    assert (reason, sorted(pool.fetched)) == ("", [key(n) for n in range(3)])


@pytest.mark.parametrize("pool", [Pool(0), Pool(5, members=0)], ids=["cold-member", "no-member"])
def test_nobody_to_warm_from_ends_at_once_and_is_not_warm(pool: Pool) -> None:
    reason, _, account = warm(pool)
    assert (reason, account.events) == ("nothing_to_warm", [])


def test_after_a_restart_it_waits_for_the_arena_and_fetches_only_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warmup, "LOOK_SECONDS", 0.001)
    arena = Arena(SLOTS, unjudged=range(8))
    looks = iter(range(8))

    def look(now: float) -> bool:
        """A slot is judged each time the warm-up looks whether all are."""
        slot = next(looks, None)
        if slot is None:
            return True
        return not arena.judge(slot, SlotHeader(key(slot), b"", b"", False))

    monkeypatch.setattr(arena, "writable", look)
    pool = Pool(20)
    reason, flow, _ = warm(pool, arena=arena, targetPercent=100)
    assert (reason, sorted(pool.fetched)) == ("", [key(n) for n in range(8, 20)])
    progress = flow.progress.snapshot(0.0)
    assert (progress.planned_blocks, progress.loaded_blocks, progress.bytes) == (20, 20, 12 * SLOT)


def test_a_member_without_an_answer_is_left_out() -> None:
    pool = Pool(5, members=2)
    pool.lists["m0"] = [HotBlock(key(50), b"", 0, -1.0)]
    reason, _, _ = warm(pool, targetPercent=100)
    assert (reason, sorted(pool.fetched)) == ("", [key(n) for n in range(5)])


def test_a_budget_of_nothing_warms_nothing() -> None:
    pool = Pool(5)
    assert warm(pool, Prewarm(maxBytes=SLOT - 1))[0] == "nothing_to_warm"
    assert pool.fetched == []


def test_a_busy_source_is_asked_again_until_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "BUSY_SECONDS", 0.001)
    pool = Pool(20)
    refused = iter(["busy"] * 7)
    pool.answers = lambda address, wanted: next(refused, "")
    assert warm(pool, targetPercent=100)[0] == ""
    assert sorted(pool.fetched) == [key(n) for n in range(20)]


def test_sources_that_end_before_the_target_are_named_and_above_the_target_forgiven() -> None:
    pool = Pool(20)
    pool.answers = lambda address, wanted: "transfer_failed" if key(3) in [w.key for w in wanted] else ""
    assert warm(pool, targetPercent=100)[0] == "warm_incomplete"
    assert warm(pool, targetPercent=80)[0] == ""


def test_the_deadline_ends_a_warm_up_that_is_too_slow() -> None:
    started = time.monotonic()
    pool = Pool(20)
    served = iter(range(2))
    pool.answers = lambda address, wanted: "" if next(served, None) is not None else "busy"
    reason, flow, _ = warm(pool, deadlineSeconds=0.3)
    assert reason == "warm_deadline"
    assert flow.progress.loaded < 20
    assert time.monotonic() - started < 10


def test_where_the_pool_blocks_a_slow_warm_up_ends_whole_and_one_that_stands_still_by_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warmup, "BUSY_SECONDS", 0.0)
    clock = [1000.0]
    monkeypatch.setattr(warmup.time, "monotonic", lambda: clock[0])

    def slow(address: str, wanted: Sequence[Wanted]) -> str:
        clock[0] += 9.0
        return ""

    pool = Pool(20)
    pool.answers = slow
    assert warm(pool, targetPercent=100, deadlineSeconds=10.0, onDeadline="Block")[0] == ""
    assert clock[0] >= 1045.0  # five batches: far beyond the deadline of one that degrades
    pool = Pool(20)
    pool.answers = slow
    assert warm(pool, targetPercent=100, deadlineSeconds=10.0)[0] == "warm_deadline"

    pool, left = Pool(20), iter(range(2))

    def busy_after_two(address: str, wanted: Sequence[Wanted]) -> str:
        clock[0] += 9.0 if next(left, None) is not None else 1.0
        return "" if clock[0] < began + 18.5 else "busy"

    began = clock[0]
    pool.answers = busy_after_two
    reason, flow, _ = warm(pool, Prewarm(maxStreams=1), targetPercent=100, deadlineSeconds=10.0, onDeadline="Block")
    assert (reason, flow.progress.loaded) == ("warm_deadline", 8)
    assert began + 28.0 <= clock[0] <= began + 29.0  # ten seconds after the last block


class Config:
    """The configuration, which may be paused; counts how often it is looked at."""

    def __init__(self) -> None:
        self.paused, self.looks = False, 0

    def __call__(self) -> AgentConfig:
        self.looks += 1
        return AgentConfig(
            version=1,
            pool="pool",
            arenaBytes=SLOT * SLOTS,
            members=Members(file="none"),
            tls=Tls(mode="Disabled"),
            prewarm=Prewarm(maxStreams=2),
            readiness=Readiness(targetPercent=100),
            paused=self.paused,
        )


def begun(
    pool: Pool, config: Callable[[], AgentConfig], since: Callable[[], float | None]
) -> tuple[list[str], threading.Event]:
    account = Account()
    slab = Slab(b"f" * 16, {}, SLOT, ArenaMemory.anonymous(SLOT * SLOTS), Arena(SLOTS))
    said: list[str] = []
    done = threading.Event()
    flow = WarmupFlow(config, pool, pool, pool, Breakers(account), account)  # type: ignore[arg-type]
    flow.start(slab, lambda reason: (said.append(reason), done.set()), since)
    return said, done


def test_while_paused_no_batch_is_begun_though_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "LOOK_SECONDS", 0.001)
    pool, config, calls, looked = Pool(20), Config(), list[bool](), list[int]()

    def answers(address: str, wanted: Sequence[Wanted]) -> str:
        """Called for one stream after the other."""
        calls.append(config.paused)
        if len(calls) == 1:
            wait_for("a second stream", lambda: [t.name for t in threading.enumerate()].count("kvpool-warm") == 2, 10)
            looked.append(config.looks)
            config.paused = True
        elif config.paused:
            wait_for("the first one's end was seen", lambda: config.looks > looked[0] + 1, 10, 0.001)
        return ""

    pool.answers = answers
    said, done = begun(pool, config, time.monotonic)
    wait_for("paused", lambda: config.paused and config.looks > 50, 10, 0.001)
    assert (calls, said) == ([False, True], [])  # the second one ran already
    config.paused = False
    assert done.wait(10)
    assert (said, calls) == ([""], [False, True, *[False] * 3])


def test_one_that_is_ended_while_it_is_paused_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "LOOK_SECONDS", 0.001)
    pool, config = Pool(20), Config()
    began: list[float | None] = [None]

    def answers(address: str, wanted: Sequence[Wanted]) -> str:
        config.paused = True
        return ""

    pool.answers = answers
    said, done = begun(pool, config, lambda: began[0])
    wait_for("stands still", lambda: config.paused and config.looks > 50, 10, 0.001)
    began[0] = float("-inf")  # the engine has started without the pool
    config.paused = False
    assert done.wait(10)
    assert said == ["warm_deadline"]


def test_where_the_pool_blocks_one_whose_engine_starts_without_the_pool_ends_all_the_same() -> None:
    pool, config = Pool(20), Config()
    blocking = replace(config(), readiness=Readiness(targetPercent=100, onDeadline="Block"))
    began: list[float | None] = [None]

    def answers(address: str, wanted: Sequence[Wanted]) -> str:
        began[0] = float("-inf")
        return ""

    pool.answers = answers
    said, done = begun(pool, lambda: blocking, lambda: began[0])
    assert done.wait(10)
    assert said == ["warm_deadline"]
    assert 0 < len(pool.fetched) < 20
