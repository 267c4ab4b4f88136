"""When a load is admitted: the rule alone, then the plan of a request under it."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from disk_slab import DiskSlab
from disk_slab import key as block_key
from local_member import lacking
from replica import wait_for

from kvpool_agent.account import Account
from kvpool_agent.costs import Costs, Shares, Timing
from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.directory.locate import Holders
from kvpool_agent.flows.disk import DiskSource
from kvpool_agent.flows.fetch import Fetcher
from kvpool_agent.flows.lookup import LookupFlow
from kvpool_agent.flows.request import Request
from kvpool_agent.peer.connection import PeerError
from kvpool_agent.policy.admission import Offer, asking_pays, chosen, patience
from kvpool_agent.policy.boundary import NO_LIMIT, Blocks
from kvpool_agent.policy.tries import LONGEST_TRY_SECONDS, TRY_SECONDS
from kvpool_agent.store.arena import Arena
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of
from kvpool_client.groups import FULL, Group
from kvpool_contract.config import Loading

SLOT, SLOTS, BLOCKS = 4096, 64, 8
NUMBERS = range(1, BLOCKS + 1)
KEYS = [block_key(n) for n in NUMBERS]
Land = Callable[[int, bytes, int, Callable[[memoryview], None]], None]


def offer(boundary: int, recompute: float | None, install: float = 0.0, beside: float = 0.0,
          **parts: float | None) -> Offer:  # fmt: skip
    return Offer(boundary, parts, install, recompute, beside)


@pytest.mark.parametrize(
    ("offers", "expected"),
    [
        ([offer(8, 1.0, a=0.5)], 8),
        ([offer(8, 1.0, a=0.9)], None),  # faster, but not by the margin
        ([offer(8, 1.0, a=0.5, install=0.4)], None),
        ([offer(8, 1.0, a=0.5, beside=0.8)], None),  # those beside it lose too much
        ([offer(8, 1.0)], 8),  # all of it lies here
        ([offer(8, 1.0, install=0.9)], None),
        ([offer(8, None, a=99.0)], 8),  # nobody knows what computing costs
        ([offer(8, 0.001, a=None)], 8),  # nobody knows what this source costs
        ([offer(8, 1.0, a=0.2, b=2.0), offer(5, 0.6, a=0.2)], 5),
        ([offer(8, 1.0, a=0.2, b=0.1), offer(5, 0.6, a=0.2)], 8),
        ([offer(8, 1.0, a=2.0), offer(8, 1.0, b=0.1)], 8),
        ([offer(8, 1.0, a=0.2), offer(5, 0.6, b=None)], 8),
        ([], None),
    ],
)
def test_the_boundary_that_saves_most_is_chosen_and_none_that_does_not_pay(
    offers: Sequence[Offer], expected: int | None
) -> None:
    found = chosen(offers, 1.2)
    assert (found.boundary if found is not None else None) == expected


def test_where_asking_alone_takes_longer_than_computing_nobody_is_asked() -> None:
    assert asking_pays(0.1, 1.0, 1.2)
    assert not asking_pays(0.1, 0.11, 1.2)
    assert asking_pays(99.0, None, 1.2)


def test_a_load_has_as_long_as_computing_takes() -> None:
    assert (patience(None), patience(2.0), patience(0.001)) == (None, 2.0, 0.05)


# -- the plan of a request ---------------------------------------------------------------------------


class Members:
    """Directory and dialer in one: who holds which blocks, and how long each block takes there."""

    def __init__(self, held: Mapping[str, Sequence[bool]], **seconds: float) -> None:
        self.held, self.seconds = held, seconds
        self.asked: list[tuple[str, int]] = []  # who, and for how many blocks
        self.lookups = 0

    def holders(self, _slab: bytes, _chains: object, _deadline: float, _starts: object, *, in_groups: bool,
                slab: bytes) -> Holders:  # fmt: skip
        self.lookups += 1
        return Holders([{name: list(flags) for name, flags in self.held.items()}], "never_published")

    def fetch(self, address: str, _slab: bytes, keys: Sequence[bytes], _purpose: str, deadline: float,
              land: Land) -> None:  # fmt: skip
        self.asked.append((address, len(keys)))
        for index, key in enumerate(keys):
            threading.Event().wait(min(self.seconds[address], max(0.0, deadline - time.monotonic())))
            if time.monotonic() >= deadline:
                raise PeerError("the deadline has passed")
            data = key * (SLOT // 16)
            land(
                index, tag_of(key, memoryview(data)), SLOT, lambda view, data=data: view.__setitem__(slice(None), data)
            )


class Planner:
    """Plans requests of the same chain; `now` is the clock of tries and costs; `stored`: a disk beside the members."""

    def __init__(self, members: Members, loading: Loading, stored: DiskSlab | None = None) -> None:
        self.members, self.account, self.now = members, Account(), 1000.0
        self.fetcher = Fetcher(members, Breakers(self.account), self.account)  # type: ignore[arg-type]
        self.costs = self.fetcher.costs = Costs(lambda: self.now)
        tier = stored.tier if stored is not None else None
        disk = DiskSource(tier, self.account, self.fetcher.in_flight, self.costs)
        self.flow = LookupFlow(members, self.fetcher, self.account, 20.0, disk=disk)  # type: ignore[arg-type]
        self.flow.admission.loading = loading
        self.flow.admission._clock = self.clock
        fresh = Slab(b"f" * 16, {}, SLOT, ArenaMemory.anonymous(SLOTS * SLOT), Arena(SLOTS))
        self.slab = stored.slab if stored is not None else fresh

    def clock(self) -> float:
        return self.now

    def computing_costs(self, seconds: float) -> None:
        """All of the chain takes so long."""
        for _ in range(4):
            self.costs.served(Timing(seconds, seconds, 0, BLOCKS))

    def path_costs(self, name: str, block_seconds: float, times: int = 60) -> None:
        for _ in range(times):
            self.costs.moved(name, 0.0, SLOT, block_seconds)

    def was_tried(self, way: str) -> None:
        """Just now, so that no request tries it again."""
        assert self.flow.admission._tries.due(way, self.now)

    def forgets_blocks(self) -> None:
        """What has been loaded is gone again."""
        for key in KEYS:
            self.slab.arena.drop(key)

    def plan(self) -> tuple[int, dict[str, int]]:
        """Blocks ready, and what was missed in this plan, by reason."""
        before = self.account.misses
        hits, lease = self.flow.plan(self.slab, lacking(KEYS), time.monotonic() + 20.0)
        self.slab.arena.release(lease)
        now = self.account.misses
        missed = {word: count - before.get(word, 0) for word, count in now.items() if count > before.get(word, 0)}
        assert len(hits[0]) + sum(missed.values()) == BLOCKS
        return len(hits[0]), missed


@pytest.fixture
def planner() -> Iterator[Callable[..., Planner]]:
    made: list[Planner] = []

    def make(members: Members, stored: DiskSlab | None = None, **loading: object) -> Planner:
        made.append(Planner(members, Loading(**loading), stored))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.flow.close()


ALL = [True] * BLOCKS
Make = Callable[..., Planner]


def test_what_is_slower_than_computing_is_refused_by_name_and_a_try_costs_nobody_a_wait(planner: Make) -> None:
    made = planner(Members({"a": ALL}, a=0.0))
    made.computing_costs(0.8)
    made.path_costs("a", 0.2)  # 1.6 s for the chain
    assert made.plan() == (0, {"too_slow": BLOCKS})
    # the try fetches a few blocks of it, on another thread
    wait_for("the try", lambda: len(made.slab.arena) == 4, 20)
    assert made.members.asked == [("a", 4)]
    assert made.account.counters == {"plans": 1, "loads_refused": 1, "loads_tried": 1}


@pytest.mark.parametrize(("prompts", "expected"), [(0, (BLOCKS, {})), (8, (0, {"too_slow": BLOCKS}))])
def test_of_an_engine_that_was_calibrated_the_first_request_is_decided_by_what_is_measured(
    planner: Make, prompts: int, expected: tuple[int, dict[str, int]]
) -> None:
    made = planner(Members({"a": ALL}, a=0.0))
    for n in range(prompts):
        made.costs.calibrated(n + 1, (n + 1) * 0.1)
    made.path_costs("a", 0.2)  # 1.6 s for the chain, twice of what computing takes
    assert made.plan() == expected


def test_however_many_ways_are_slow_two_are_tried_at_a_time(planner: Make) -> None:
    one_each = {f"m{n}": [block == n for block in range(BLOCKS)] for n in range(BLOCKS)}
    made = planner(Members(one_each, **dict.fromkeys(one_each, 0.0)))
    made.computing_costs(0.8)
    for name in one_each:
        made.path_costs(name, 0.2)
    begun: list[Callable[[], object]] = []
    made.flow.admission._submit = begun.append
    assert made.plan() == (0, {"too_slow": BLOCKS})
    made.plan()
    assert len(begun) == 2  # as long as these go on; requests have the other threads and streams
    begun.pop(0)()
    made.plan()
    assert len(begun) == 2
    while begun:
        begun.pop()()
    assert len(made.members.asked) == made.account.counters["loads_tried"] == 3
    assert len(set(made.members.asked)) == 3


def test_a_try_that_fails_gives_its_place_to_another(planner: Make) -> None:
    made = planner(Members({"a": ALL}, a=0.0))
    made.computing_costs(0.8)
    made.path_costs("a", 0.2)
    begun: list[Callable[[], object]] = []
    made.flow.admission._submit = begun.append
    made.members.fetch = None  # type: ignore[assignment,method-assign]
    for _ in range(3):
        made.plan()
        with pytest.raises(TypeError):
            begun.pop()()
        made.now += 60.0
    assert made.account.counters["loads_tried"] == 3


def tries_until_loaded(made: Planner) -> list[float]:
    """After how many seconds each try came, of requests every 2.5 s; all are refused until one is loaded, or for five
    minutes."""
    made.flow.admission._submit = lambda work: work()
    began, tried = made.now, list[float]()
    for refused in range(120):
        before = made.account.counters.get("loads_tried", 0)
        if made.plan() == (BLOCKS, {}):
            break
        if made.account.counters.get("loads_tried", 0) > before:
            tried.append(made.now - began)
            made.forgets_blocks()
        assert made.account.counters["loads_refused"] == refused + 1
        made.now += TRY_SECONDS / 2
    return tried


def test_what_stays_slow_is_tried_ever_more_rarely(planner: Make) -> None:
    made = planner(Members({"a": ALL}, a=0.02))
    made.computing_costs(0.1)
    made.path_costs("a", 0.05)  # 0.4 s for the chain
    assert tries_until_loaded(made) == [0.0, 5.0, 15.0, 35.0, 75.0, 135.0, 195.0, 255.0]

    for _ in range(10):
        made.computing_costs(20.0)  # it pays now, so that the tries begin anew when it does no more
    assert made.plan() == (BLOCKS, {})
    made.forgets_blocks()
    made.path_costs("a", 100.0)
    assert made.plan() == (0, {"too_slow": BLOCKS})
    assert made.account.counters["loads_tried"] == 9


def test_a_source_that_is_fast_again_is_tried_soon_until_it_is_loaded_from(planner: Make) -> None:
    made = planner(Members({"a": ALL}, a=0.0))
    made.computing_costs(8.0)
    made.path_costs("a", 2.0)
    tried = tries_until_loaded(made)
    assert tried == [TRY_SECONDS * n for n in range(len(tried))]
    assert 0 < len(tried) < 60


def test_tries_of_a_disk_are_measured_and_end_the_refusal_when_it_is_fast_again(planner: Make, tmp_path: Path) -> None:
    stored = DiskSlab(tmp_path, slot_bytes=SLOT).start()
    stored.keep(NUMBERS)
    stored.drop(NUMBERS)
    made = planner(Members({}), stored)
    made.computing_costs(8.0)
    made.path_costs("disk", 2.0)  # 16 s for the chain
    made.flow.admission._submit = lambda work: work()
    tries = 0
    for _ in range(100):
        before = made.costs.snapshot().paths["disk"].moved
        if made.plan() == (BLOCKS, {}):
            break
        assert made.costs.snapshot().paths["disk"].moved == before + 1
        tries += 1
        stored.drop(NUMBERS)
        made.now += LONGEST_TRY_SECONDS
    assert 0 < tries < 100
    assert made.account.counters["loads_tried"] == made.account.counters["loads_refused"] == tries
    stored.close()


def test_a_fast_source_that_turns_slow_is_refused_after_loads_that_end_at_the_soft_deadline(planner: Make) -> None:
    made = planner(Members({"a": ALL}, a=30.0))
    made.computing_costs(0.4)
    made.path_costs("a", 0.001)
    began = time.monotonic()
    ready, missed = made.plan()
    assert (ready, missed) == (0, {"deadline": BLOCKS})
    assert time.monotonic() - began < 15  # not the 20 s of the load deadline, nor the 30 s of a block
    for _ in range(20):
        if made.plan() == (0, {"too_slow": BLOCKS}):
            break
    else:
        pytest.fail("it was never refused")


def test_without_the_slow_source_as_much_is_loaded_as_the_others_have(planner: Make) -> None:
    half = [i < BLOCKS // 2 for i in range(BLOCKS)]
    made = planner(Members({"fast": half, "slow": ALL}, fast=0.0, slow=0.0))
    made.computing_costs(8.0)
    made.path_costs("fast", 0.001)
    made.path_costs("slow", 10.0)
    made.was_tried("slow")  # not now
    assert made.plan() == (BLOCKS // 2, {"too_slow": BLOCKS // 2})
    assert made.members.asked == [("fast", BLOCKS // 2)]
    assert made.account.counters["loads_shortened"] == 1


@pytest.mark.parametrize(("mode", "ready"), [("Always", BLOCKS), ("Never", 0), ("Measured", 0)])
def test_the_mode_decides(planner: Make, mode: str, ready: int) -> None:
    made = planner(Members({"a": ALL}, a=0.0), mode=mode)
    made.computing_costs(0.001)
    made.path_costs("a", 1.0)
    reason = {"Never": "loading_off", "Measured": "too_slow"}.get(mode)
    assert made.plan() == (ready, {reason: BLOCKS} if reason else {})
    assert made.members.lookups == (mode != "Never")


def test_what_lies_in_the_arena_is_weighed_too_and_let_through_at_a_bounded_rate(planner: Make) -> None:
    made = planner(Members({"a": ALL}, a=0.0))
    assert made.plan() == (BLOCKS, {})
    made.computing_costs(0.8)
    for _ in range(60):
        made.costs.served(
            Timing(2.0, 0.8, 0, BLOCKS, 0.0, 1.0), Shares(0, BLOCKS, BLOCKS * SLOT)
        )  # installing takes longer
    assert made.plan() == (BLOCKS, {})  # let through, to measure it anew
    assert made.plan() == (0, {"too_slow": BLOCKS})
    made.now += TRY_SECONDS
    assert made.plan() == (BLOCKS, {})


def test_what_installing_costs_is_asked_by_the_blocks_by_which_it_is_measured(planner: Make) -> None:
    """Those of the reference group, however many groups have blocks of the same tokens."""
    made = planner(Members({}))
    made.computing_costs(0.8)
    made.costs.served(Timing(2.0, 0.8, 0, BLOCKS, 0.0, 0.5), Shares(0, BLOCKS, BLOCKS * SLOT))
    made.was_tried("install")
    groups = [[bytes([number, n]) * 8 for n in range(BLOCKS)] for number in range(3)]
    for keys in groups:
        for key, slot in zip(keys, made.slab.arena.reserve(BLOCKS, 0.0), strict=True):
            made.slab.arena.commit(key, b"", slot, tag_of(key, made.slab.view(slot)), foreign=False)
    blocks = [Blocks(Group(number, FULL, 0, 1), [True] * BLOCKS) for number in range(3)]
    hits, _ = made.flow.plan(made.slab, Request(blocks, groups, NO_LIMIT), time.monotonic() + 20.0)
    assert [len(group) for group in hits] == [BLOCKS] * 3  # half a second to install, of 0.8


def test_where_asking_takes_longer_than_computing_nobody_is_asked_and_that_is_a_miss_by_name(planner: Make) -> None:
    made = planner(Members({"a": ALL}, a=0.0))
    made.computing_costs(10.0)
    for _ in range(60):
        made.costs.looked_up(500.0)
    made.was_tried("lookup")
    assert made.plan() == (0, {"too_slow": BLOCKS})
    assert made.members.lookups == 0
    made.now += TRY_SECONDS
    assert made.plan() == (BLOCKS, {})
    assert made.members.lookups == 1

    def asks(seconds: float) -> bool:
        for _ in range(200):
            made.costs.looked_up(seconds)
        before = made.members.lookups
        made.forgets_blocks()
        made.plan()
        return made.members.lookups > before

    made.now += TRY_SECONDS
    assert not asks(500.0), "the second try is not due yet"
    assert asks(0.0)
    assert asks(500.0), "since it has paid, tries begin anew"


def test_bytes_that_others_wait_for_count_as_waited_for(planner: Make) -> None:
    made = planner(Members({"a": ALL}, a=0.0))
    made.computing_costs(8.0)
    made.path_costs("a", 0.5)  # 4 s for the chain: it pays
    made.was_tried("a")
    made.fetcher._wait_for("a", 8 * SLOT)  # another request's chain: 8 s for both
    assert made.plan() == (0, {"too_slow": BLOCKS})
    made.fetcher._wait_for("a", -8 * SLOT)
    assert made.plan() == (BLOCKS, {})
