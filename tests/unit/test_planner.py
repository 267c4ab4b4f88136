"""The planner's rules on traffic made for them: what lies where, what is read, what a sample says of all."""

import random
from collections.abc import Iterator

import pytest

from kvpool_lab.costs import Costs, Path, PrefillCurve, break_even_bandwidth, break_even_tokens, steady
from kvpool_lab.fleet import Fleet, Flows, Hardware
from kvpool_lab.newcomers import POPULARITY, RECENCY, Newcomers
from kvpool_lab.planner import census, curve, fleets
from kvpool_lab.recorded import Request
from kvpool_lab.routing import ROUTINGS, router
from kvpool_lab.sample import Census, Sample, Sum, mixed
from kvpool_lab.verdict import LOCAL, ROUTE, SHARE, judge

ALL = Sample(1.0, 100)
FAST, SLOW = Path("fast", 1e9), Path("slow", 1e3)


def costs(path: Path) -> Costs:
    """100 tokens a second; one byte a token."""
    return Costs(steady(100), path, 1)


def request(blocks: list[int], at: float = 0.0, session: str = "", kind: str = "") -> Request:
    return Request(10 * len(blocks), blocks, 10, at, session, kind)


def chats(sessions: int, turns: int, kind: str = "") -> list[Request]:
    """Sessions that grow by four blocks a turn, mixed by chance, ten seconds apart."""
    draw = random.Random(3)
    order = [session for session in range(sessions) for _ in range(turns)]
    draw.shuffle(order)
    made, length = [], [0] * sessions
    for number, session in enumerate(order):
        length[session] += 4
        blocks = [1000 * (session + 1) + i for i in range(length[session])]
        made.append(request(blocks, 10.0 * number, kind=kind))
    return made


def test_a_prompt_is_loaded_from_the_replica_that_computed_it_and_read_from_the_arena_after_that() -> None:
    fleet = Fleet(Hardware(3, 0, 100, "LRU", costs(FAST)), ALL, sharing=True)
    for replica, blocks in ((0, [1, 2, 3]), (1, [1, 2, 9]), (1, [1, 2, 3]), (1, [1, 2, 3])):
        fleet.request(replica, ALL.follow(request(blocks)))
    total = fleet.total
    # the second loads 1 and 2, the third finds them and loads 3, the fourth has all
    assert (total.of(total.far), total.near, total.of(total.missed), total.loads) == (30, 50, 40, 2)
    assert total.cold_seconds == pytest.approx(1.2) and total.prefill_seconds == pytest.approx(0.4)
    assert fleet.given == [30, 90, 0]


def test_without_sharing_each_replica_computes_for_itself() -> None:
    fleet = Fleet(Hardware(2, 0, 100, "LRU", costs(FAST)), ALL, sharing=False)
    for replica in (0, 1, 0, 1):
        fleet.request(replica, ALL.follow(request([1, 2])))
    assert (fleet.total.of(fleet.total.far), fleet.total.near, fleet.total.of(fleet.total.missed)) == (0, 40, 40)


def test_what_takes_longer_to_load_is_computed_and_counted_as_refused() -> None:
    fleet = Fleet(Hardware(2, 0, 100, "LRU", costs(Path("slow", 50))), ALL, sharing=True)
    for replica in (0, 1):
        fleet.request(replica, ALL.follow(request([1, 2])))
    total = fleet.total
    assert (total.of(total.far), total.of(total.refused), total.of(total.missed)) == (0, 20, 40)


def test_the_engines_own_cache_is_near_and_no_arena_hit() -> None:
    fleet = Fleet(Hardware(1, 2, 100, "LRU"), ALL, sharing=True)
    for _ in range(2):
        fleet.request(0, ALL.follow(request([1, 2, 3])))
    assert (fleet.total.near, fleet.total.of(fleet.total.arena)) == (30, 10)


def test_copies_make_room_before_owned_blocks_within_their_part() -> None:
    """Owned blocks take from copies until they are above their part of seven in ten, then from each other."""
    fleet = Fleet(Hardware(2, 0, 10, "LRU", costs(FAST)), ALL, sharing=True)
    fleet.request(1, ALL.follow(request([100, 101, 102, 103])))
    fleet.request(0, ALL.follow(request([100, 101, 102, 103])))  # four copies at 0
    for number in range(10):
        fleet.request(0, ALL.follow(request([200 + number])))
    arena = fleet._replicas[0].arena
    assert [block in arena for block in (100, 101, 102, 103)] == [True, True, False, False]
    assert [200 + number in arena for number in range(10)] == [False] * 2 + [True] * 8


@pytest.mark.parametrize("name", ROUTINGS)
def test_where_routers_send_the_turns_of_a_session(name: str) -> None:
    chosen, routing = {}, router(name, 3)
    for each in chats(6, 8):
        chosen.setdefault(each.blocks[0], []).append(routing.route(ALL.follow(each)))
    together = [len(set(replicas)) == 1 for replicas in chosen.values()]
    assert all(together) if name == "sticky" else not any(together) if name == "round-robin" else sum(together) >= 2
    assert {replica for replicas in chosen.values() for replica in replicas} == {0, 1, 2}


def test_a_session_that_a_trace_names_stays_though_its_prompts_share_nothing() -> None:
    routing = router("sticky", 2)
    found = [routing.route(ALL.follow(request([n], session="ab"[n % 2]))) for n in range(8)]
    assert found == [0, 1] * 4


def test_sessions_are_told_apart_by_blocks_that_are_not_followed() -> None:
    sample = Sample(0.5, 100)
    followed = [block for block in range(1000) if sample.follow(request([block])).blocks]
    others = [block for block in range(1000) if block not in followed]
    begin = followed[:8]
    first = [[*begin, *others[2 * n : 2 * n + 2]] for n in range(4)]
    routing = router("sticky", 4)
    chosen = [routing.route(sample.follow(request(blocks))) for blocks in first]
    assert len(set(chosen)) == 4
    assert [routing.route(sample.follow(request([*blocks, 2000 + n]))) for n, blocks in enumerate(first)] == chosen


def test_affinity_gives_way_where_its_replica_is_overloaded() -> None:
    routing = router("prefix-affine", 4)
    found = [routing.route(ALL.follow(request([1, 2, 3]))) for _ in range(8)]
    assert len(set(found)) == 4


def test_the_worst_quarter_of_an_hour() -> None:
    flows = Flows()
    for minute in range(60):
        flows.add(60.0 * minute, 900 if 20 <= minute < 35 else 60)
    total = 15 * 900 + 45 * 60
    assert flows.worst(total, 3600) == 15
    assert flows.worst(total, 600) == total / 600  # shorter than the window: the mean


def test_break_even_lengths_and_bandwidths() -> None:
    deep = PrefillCurve([(100, 1), (200, 3)])
    assert [deep.seconds(n) for n in (50, 100, 150, 300)] == [0.5, 1, 2, 5]
    assert deep.seconds(50, after=100) == 1  # deeper tokens cost more
    # 1 s before the first byte, then 100 tokens a second: 1 + n/100 < 0.02 n - 1 from 201 tokens on
    assert break_even_tokens(deep, Path("p", 100, 1.0), 1) == 201
    assert break_even_tokens(steady(100), Path("p", 100), 1) is None
    assert break_even_bandwidth(deep, 1.0, 4, 200) == 400
    assert break_even_bandwidth(deep, 1.0, 4, 100) is None


def heavy(requests: int) -> Iterator[Request]:
    """Every request begins with one block, most with one of some prefixes; the rest is a session's or new."""
    draw = random.Random(8)
    sessions = [[0] + [50 + 10 * (n % 5) + i for i in range(6)] + [10**6 * (n + 1)] for n in range(60)]
    fresh = 10**9
    for number in range(requests):
        session = sessions[min(59, int(draw.expovariate(0.06)))]
        session.extend(range(fresh, fresh + 3))
        fresh += 3
        yield request(session[-40:] if len(session) > 200 else list(session), float(number))
        if len(session) > 60:
            del session[8:]


def test_a_sample_tells_what_all_blocks_do() -> None:
    wanted = [(policy, size) for policy in ("LRU", "GDSF") for size in (300, 1500)]
    found = {}
    for limit in (10**6, 2500):
        held = census(lambda _: heavy(1500), limit)
        sample = held.sample()
        found[limit] = (held, sample, curve(lambda _: heavy(1500), sample, wanted))
    exact, part = found[10**6], found[2500]
    assert exact[1].rate == 1 and 0.2 < part[1].rate < 0.7
    assert 0 in part[1].common and part[0].tokens == exact[0].tokens
    assert part[1].distinct == pytest.approx(exact[1].distinct, rel=0.1)
    assert part[2].ideal == pytest.approx(exact[2].ideal, abs=0.02)
    for one, other in zip(exact[2].points, part[2].points, strict=True):
        assert part[2].hit(other.missed) == pytest.approx(exact[2].hit(one.missed), abs=0.04), one.policy
    assert exact[2].hit(exact[2].points[0].missed) < exact[2].hit(exact[2].points[1].missed) - 0.1


def test_hits_alone_scaled_up_would_be_wrong_where_few_blocks_have_them() -> None:
    """One block of half of all references is not in the sample: the misses of the others say all the same how much."""
    left_out = next(n for n in range(100) if mixed(n) >= 1 << 63)
    sample, asked, missed, tokens = Sample(0.5, 1001), Sum(), Sum(), 0
    for number in range(1000):
        followed = sample.follow(request([left_out, 5000 + number]))
        asked.add(followed, 0, len(followed.blocks))
        missed.add(followed, 0, len(followed.blocks))
        tokens += 20
    common = Sample(0.5, 1001, frozenset({left_out}))
    again, all_missed = Sum(), Sum()
    for number in range(1000):
        followed = common.follow(request([left_out, 5000 + number]))
        again.add(followed, 0, len(followed.blocks))
        all_missed.add(followed, 1, len(followed.blocks))
    assert all_missed.of_all(common, again, tokens) == pytest.approx(10_000, rel=0.02)
    assert missed.of_all(sample, asked, tokens) > 15_000  # without it: all of that block taken for a miss


def test_memory_is_bounded_by_what_is_followed() -> None:
    held = Census(500)
    for number in range(4000):
        held.count(request([number]))
    sample = held.sample()
    assert len(held._below) <= 500 and len(held._often) <= 4096
    assert sample.distinct == pytest.approx(4000, rel=0.15) and sample.blocks(1000) == round(1000 * sample.rate)


def test_a_newcomer_with_the_hot_set_hits_what_all_prompts_begin_with() -> None:
    """Ten common blocks before a new one in each request: ten blocks have all that there is to gain."""
    made = [request([*range(10), 100 + number], float(number)) for number in range(400)]
    newcomers = Newcomers(ALL, len(made), 3, [1, 10, 20])
    for each in made:
        newcomers.request(ALL.follow(each))
    gains = newcomers.gains
    best = gains.smallest(POPULARITY)
    assert best is not None and best.blocks == 10 and gains.part(best) == 1
    recent = {each.blocks: gains.hit(each) for each in gains.warmed if each.ranking == RECENCY}
    assert recent[1] < recent[10] == recent[20]  # what comes after them is nobody's again


def test_sessions_that_go_on_are_found_by_recency_before_popularity() -> None:
    """Old sessions were long and are over; those of now are young."""
    old = [request([n * 1000 + i for i in range(6)], 1.0) for n in range(1, 20) for _ in range(9)]
    young = [request([n * 10**6 + i for i in range(6)], 2.0) for _ in range(12) for n in range(1, 20)]
    newcomers = Newcomers(ALL, len(old) + len(young), 1, [19 * 6])
    for each in (*old, *young):
        newcomers.request(ALL.follow(each))
    hit = {each.ranking: newcomers.gains.hit(each) for each in newcomers.gains.warmed if each.blocks}
    assert hit[RECENCY] > hit[POPULARITY] + 0.1


def verdict(made: list[Request], path: Path, kind: str = "") -> tuple[str, str]:
    found = fleets(lambda _: made, ALL, Hardware(3, 0, 100_000, "GDSF", costs(path)), ROUTINGS)
    said = judge(kind, found, costs(path), made[-1].at)
    return said.word, said.reason


def test_shared_documents_are_to_be_shared_and_a_sessions_turns_routed() -> None:
    draw = random.Random(2)
    documents = [[n * 100 + i for i in range(20)] for n in range(30)]
    # two documents in each prompt, so no router has a replica that is right for both
    made = [request([9, *draw.choice(documents), 10**6 + number], 30.0 * number, kind="rag") for number in range(300)]
    word, reason = verdict(made, FAST, "rag")
    assert word in (SHARE, ROUTE)
    assert verdict(made, SLOW, "rag")[0] != SHARE
    word, reason = verdict(chats(12, 10, "chat"), FAST, "chat")
    assert word == ROUTE and "routing saves" in reason and "without moving a byte" in reason


def test_new_prompts_need_nothing() -> None:
    word, reason = verdict([request([n], float(n)) for n in range(50)], FAST)
    assert (word, reason) == (LOCAL, "hardly any prefix comes twice, or the trace does not say which do")
