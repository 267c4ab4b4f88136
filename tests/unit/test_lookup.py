"""The plan of a request: what a member promised and does not serve comes from the next one that holds it, in time."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from local_member import lacking

from kvpool_agent.account import Account
from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.directory.locate import Holders
from kvpool_agent.flows.fetch import Fetcher
from kvpool_agent.flows.lookup import SOURCES_TRIED, LookupFlow
from kvpool_agent.peer.connection import PeerError
from kvpool_agent.store import intact as arena_check
from kvpool_agent.store.arena import Arena
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of

SLOT, SLOTS, BLOCKS = 4096, 64, 6  # so many slots that a plan is fetched in one part
KEYS = [bytes([n]) * 16 for n in range(1, BLOCKS + 1)]
Land = Callable[[int, bytes, int, Callable[[memoryview], None]], None]
# (keys asked for, land, deadline) → nothing: what a member does at a fetch
Serves = Callable[[Sequence[bytes], Land, float], None]


def honest(keys: Sequence[bytes], land: Land, _deadline: float) -> None:
    for index, key in enumerate(keys):
        data = key * (SLOT // 16)
        land(index, tag_of(key, memoryview(data)), SLOT, lambda view, data=data: view.__setitem__(slice(None), data))


def nothing(_keys: Sequence[bytes], _land: Land, _deadline: float) -> None:
    """Promises all, serves nothing."""


def half(keys: Sequence[bytes], land: Land, deadline: float) -> None:
    honest(keys[: len(keys) // 2], land, deadline)
    raise PeerError("connection closed by the peer")


def silent(_keys: Sequence[bytes], _land: Land, deadline: float) -> None:
    threading.Event().wait(max(0.0, deadline - time.monotonic()))
    raise PeerError("the deadline has passed")


class Members:
    """Directory and dialer in one: each member claims all blocks and serves as it is told. `asked`: by whom, in
    order."""

    def __init__(self, **members: Serves) -> None:
        self.members, self.asked = members, list[str]()
        self.claims = {name: [True] * BLOCKS for name in members}

    def holders(
        self,
        _fingerprint: bytes,
        chains: Sequence[Sequence[bytes]],
        _deadline: float,
        starts: Sequence[int],
        *,
        in_groups: bool,
        slab: bytes,
    ) -> Holders:
        assert slab == _fingerprint
        assert ([len(chain) for chain in chains], starts, in_groups) == ([BLOCKS], [0], True)
        return Holders([dict(self.claims)], "never_published")

    def fetch(
        self, address: str, _fingerprint: bytes, keys: Sequence[bytes], _purpose: str, deadline: float, land: Land
    ) -> None:
        self.asked.append(address)
        self.members[address](keys, land, deadline)


@pytest.fixture
def slab() -> Slab:
    return Slab(b"f" * 16, {}, SLOT, ArenaMemory.anonymous(SLOTS * SLOT), Arena(SLOTS))


@pytest.fixture
def plan(slab: Slab) -> Iterator[Callable[[Members, float], tuple[int, dict[str, int]]]]:
    flows = []

    def made(members: Members, seconds: float = 10.0) -> tuple[int, dict[str, int]]:
        """Blocks ready, and misses by reason."""
        account = Account()
        fetcher = Fetcher(members, Breakers(account), account)  # type: ignore[arg-type]
        flows.append(LookupFlow(members, fetcher, account, seconds))  # type: ignore[arg-type]
        hits, lease = flows[-1].plan(slab, lacking(KEYS), time.monotonic() + seconds)
        slab.arena.release(lease)
        return len(hits[0]), account.misses

    yield made
    for flow in flows:
        flow.close()


@pytest.mark.parametrize("liar", [nothing, half, silent], ids=lambda f: f.__name__)
def test_a_member_that_does_not_serve_what_it_promised_shadows_nobody(
    plan: Callable[..., tuple[int, dict[str, int]]], slab: Slab, liar: Serves
) -> None:
    members = Members(a_liar=liar, b_honest=honest)
    assert plan(members, 2.0) == (BLOCKS, {})
    assert members.asked == ["a_liar", "b_honest"]
    _, blocks = slab.arena.lease(KEYS, 0.0, 1.0)
    assert [bytes(slab.view(b.slot)) for b in blocks if b is not None] == [key * (SLOT // 16) for key in KEYS]


def test_without_another_holder_its_reason_stands(plan: Callable[..., tuple[int, dict[str, int]]]) -> None:
    members = Members(a_liar=nothing)
    assert plan(members) == (0, {"evicted": BLOCKS})
    assert members.asked == ["a_liar"]


def test_what_the_second_one_does_not_hold_is_missed_for_the_first_ones_reason(
    plan: Callable[..., tuple[int, dict[str, int]]],
) -> None:
    members = Members(a_liar=nothing, b_honest=honest)
    members.claims["b_honest"] = [True, True, False, False, False, False]
    assert plan(members) == (2, {"evicted": BLOCKS - 2})


def test_many_liars_are_asked_a_bounded_number_of_times(plan: Callable[..., tuple[int, dict[str, int]]]) -> None:
    members = Members(**{f"liar{n}": nothing for n in range(SOURCES_TRIED + 3)})
    assert plan(members) == (0, {"evicted": BLOCKS})
    assert len(members.asked) == len(set(members.asked)) == SOURCES_TRIED


def test_without_room_no_other_source_is_asked(plan: Callable[..., tuple[int, dict[str, int]]], slab: Slab) -> None:
    slab.arena.reserve(SLOTS - 2, 0.0)
    members = Members(a=honest, b=honest)
    assert plan(members) == (2, {"no_room": BLOCKS - 2})
    assert members.asked == ["a"]


def test_what_has_come_is_not_evicted_for_the_parts_behind_it() -> None:
    """A fetch that goes in parts, in an arena that has room for its beginning alone."""
    small = Slab(b"f" * 16, {}, SLOT, ArenaMemory.anonymous(16 * SLOT), Arena(16))
    small.arena.reserve(14, 0.0)
    account, members = Account(), Members(a=honest)
    flow = LookupFlow(members, Fetcher(members, Breakers(account), account), account, 10.0)  # type: ignore[arg-type]
    hits, lease = flow.plan(small, lacking(KEYS), time.monotonic() + 10.0)
    assert (hits, account.misses) == ([[0, 1]], {"no_room": BLOCKS - 2})
    assert account.transfers["demand_in"].blocks == 2
    small.arena.release(lease)
    flow.close()


def test_a_block_is_hashed_where_it_lands_and_not_again_for_the_same_plan(
    plan: Callable[..., tuple[int, dict[str, int]]], slab: Slab, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[bytes] = []

    def counting(key: bytes, data: memoryview) -> bytes:
        hashed.append(key)
        return tag_of(key, data)

    monkeypatch.setattr(arena_check, "tag_of", counting)
    assert plan(Members(a=honest)) == (BLOCKS, {})
    assert hashed == []
    assert plan(Members(a=honest)) == (BLOCKS, {})  # what lay here before it is
    assert hashed == KEYS
