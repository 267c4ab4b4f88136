"""Starting → Warming → Ready, a latch: every event in every state."""

from collections.abc import Callable

import pytest

from kvpool_agent.policy.readiness import DEGRADED, STARTING, WARM, WARMING, Limits, Readiness

LIMITS = Limits(deadline_seconds=100.0, attach_grace_seconds=30.0)


def state_of(readiness: Readiness) -> tuple[str, str]:
    return readiness.state, readiness.reason


def after(*events: Callable[[Readiness], None]) -> Readiness:
    made = Readiness(LIMITS, 0.0)
    for event in events:
        event(made)
    return made


def attached(r: Readiness) -> None:
    r.attached(10.0)


def healthy(r: Readiness) -> None:
    r.engine_healthy(5.0)


def late(r: Readiness) -> None:
    r.tick(1000.0)


def warm(r: Readiness) -> None:
    r.warmed("", 50.0)


def cold(r: Readiness) -> None:
    r.warmed("nothing_to_warm", 50.0)


def refused(r: Readiness) -> None:
    r.bare("probe_mismatch", 6.0)


def bare(r: Readiness) -> None:
    r.bare("no_shm_room", 6.0)


def held(r: Readiness) -> None:
    r.hold()


def let_go(r: Readiness) -> None:
    r.let_go(60.0)


@pytest.mark.parametrize(
    ("events", "state", "reason"),
    [
        ((), STARTING, ""),
        ((late,), STARTING, ""),
        ((healthy,), STARTING, ""),
        ((healthy, late), DEGRADED, "not_attached"),
        ((attached,), WARMING, ""),
        ((attached, late), DEGRADED, "warm_deadline"),
        ((attached, warm), WARM, ""),
        ((attached, cold), DEGRADED, "nothing_to_warm"),
        ((attached, warm, late), WARM, ""),
        ((attached, cold, late), DEGRADED, "nothing_to_warm"),
        ((attached, late, warm), WARM, ""),
        ((bare,), DEGRADED, "no_shm_room"),
        ((bare, late), DEGRADED, "no_shm_room"),
        ((healthy, late, attached), DEGRADED, "nothing_to_warm"),
        ((healthy, late, attached, warm), WARM, ""),
        ((attached, warm, attached), WARM, ""),
        ((bare, attached, warm), WARM, ""),
        ((attached, bare), DEGRADED, "no_shm_room"),
        # a second engine goes bare while the first one's hot set is still coming
        ((attached, bare, cold), DEGRADED, "no_shm_room"),
        ((attached, bare, warm), DEGRADED, "no_shm_room"),
        ((attached, bare, warm, attached), WARM, ""),
        ((attached, bare, cold, attached), DEGRADED, "nothing_to_warm"),
        ((attached, bare, attached, warm), WARM, ""),
        ((attached, warm, bare, attached), WARM, ""),
        ((attached, warm, late, bare, attached), WARM, ""),
        ((attached, warm, refused, attached), DEGRADED, "nothing_to_warm"),
        ((held, attached, warm), WARMING, ""),
        ((held, attached, warm, let_go), WARM, ""),
        ((held, attached, cold, let_go), DEGRADED, "nothing_to_warm"),
        ((held, attached, let_go), WARMING, ""),
        ((held, attached, let_go, warm), WARM, ""),
        # the deadline of the warm-up is that of both
        ((held, attached, warm, late), WARM, ""),
        ((held, attached, late), DEGRADED, "warm_deadline"),
        ((held, attached, late, let_go), DEGRADED, "warm_deadline"),
        ((held, attached, bare, warm, let_go), DEGRADED, "no_shm_room"),
        ((held, attached, warm, bare, attached), WARM, ""),
    ],
)
def test_every_way_through_the_states(events: tuple[Callable[[Readiness], None], ...], state: str, reason: str) -> None:
    readiness = after(*events)
    assert state_of(readiness) == (state, reason)
    assert readiness.ready is (state in (WARM, DEGRADED))


def test_one_that_was_held_back_is_ready_from_when_it_was_let_go() -> None:
    assert after(held, attached, warm, let_go).ready_at == 60.0


def test_the_clocks_begin_with_the_first_attach_and_the_first_health() -> None:
    readiness = Readiness(LIMITS, 0.0)
    readiness.engine_healthy(5.0)
    readiness.engine_healthy(30.0)
    readiness.tick(34.9)
    assert readiness.state == STARTING
    readiness.attached(34.9)
    readiness.attached(80.0)
    readiness.tick(134.8)
    assert readiness.state == WARMING
    readiness.tick(134.9)
    assert state_of(readiness) == (DEGRADED, "warm_deadline")


def test_where_the_pool_blocks_the_deadline_counts_from_the_last_block() -> None:
    readiness = Readiness(Limits(100.0, 30.0, blocks=True), 0.0)
    readiness.attached(10.0)
    for now, block_at in ((109.0, 0.0), (208.0, 109.0), (5000.0, 4950.0), (5049.9, 4950.0)):
        readiness.tick(now, block_at)
        assert readiness.state == WARMING, now
    readiness.tick(5050.0, 4950.0)
    assert state_of(readiness) == (DEGRADED, "warm_deadline")
    readiness.warmed("", 5060.0)  # what comes later is not lost
    assert readiness.state == WARM


@pytest.mark.parametrize("block_at", [0.0, 5.0], ids=["without a block", "with one from before the attach"])
def test_where_the_pool_blocks_one_that_nothing_comes_to_ends_as_any_other(block_at: float) -> None:
    for blocks in (True, False):
        readiness = Readiness(Limits(100.0, 30.0, blocks=blocks), 0.0)
        readiness.attached(10.0)
        readiness.tick(109.9, block_at)
        assert readiness.state == WARMING
        readiness.tick(110.0, block_at)
        assert state_of(readiness) == (DEGRADED, "warm_deadline")


def test_ready_is_never_taken_back_and_its_moment_is_the_first() -> None:
    readiness = after(attached, cold)
    for event in (attached, warm, late, bare, cold, healthy, late):
        event(readiness)
        assert readiness.ready
    assert readiness.ready_at == 50.0


def test_added_seconds_count_from_the_later_of_health_and_attach() -> None:
    readiness = Readiness(LIMITS, 0.0)
    assert readiness.added_seconds == 0.0
    readiness.attached(10.0)
    assert readiness.added_seconds == 0.0
    readiness.engine_healthy(40.0)
    readiness.warmed("", 42.5)
    assert readiness.added_seconds == 2.5


def test_an_engine_that_is_healthy_after_the_warm_up_has_waited_for_nothing() -> None:
    readiness = after(attached, warm)
    readiness.engine_healthy(60.0)
    assert readiness.added_seconds == 0.0


def resumed(state: str, reason: str = "") -> Readiness:
    """A worker whose predecessor was ready like this."""
    return Readiness(LIMITS, 0.0, latched=True, last=(state, reason))


WARM_UP_ENDS = ("nothing_to_warm", "warm_deadline", "warm_incomplete", "arena_lost")


@pytest.mark.parametrize(
    "last", [(WARM, ""), *((DEGRADED, reason) for reason in (*WARM_UP_ENDS, "no_shm_room", "not_attached"))]
)
def test_a_worker_restarted_after_the_latch_goes_on_with_the_last_ones_state(last: tuple[str, str]) -> None:
    readiness = resumed(*last)
    assert readiness.ready and state_of(readiness) == last
    late(readiness)
    healthy(readiness)
    assert state_of(readiness) == last
    assert readiness.added_seconds == 0.0


@pytest.mark.parametrize("last", [(WARM, ""), *((DEGRADED, reason) for reason in WARM_UP_ENDS)])
@pytest.mark.parametrize("end", WARM_UP_ENDS[:3])
def test_a_warm_up_after_a_restart_that_does_not_reach_its_end_changes_nothing(last: tuple[str, str], end: str) -> None:
    readiness = resumed(*last)
    attached(readiness)
    readiness.warmed(end, 20.0)
    assert state_of(readiness) == last


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("nothing_to_warm", (DEGRADED, "nothing_to_warm")),
        ("warm_deadline", (WARM, "")),
        ("warm_incomplete", (WARM, "")),
        ("arena_lost", (WARM, "")),
    ],
)
def test_a_warm_up_after_a_restart_that_brings_in_what_was_missing_makes_it_warm(
    reason: str, state: tuple[str, str]
) -> None:
    readiness = resumed(DEGRADED, reason)
    attached(readiness)
    warm(readiness)
    assert state_of(readiness) == state


def test_an_arena_that_was_lost_is_named_until_the_hot_set_is_in_again() -> None:
    readiness = resumed(WARM)
    readiness.arena_lost()
    attached(readiness)
    assert readiness.ready and state_of(readiness) == (DEGRADED, "arena_lost")
    cold(readiness)
    assert state_of(readiness) == (DEGRADED, "arena_lost")
    warm(readiness)
    assert state_of(readiness) == (WARM, "")


def test_a_loss_hides_no_better_reason_and_does_not_make_ready() -> None:
    readiness = resumed(DEGRADED, "no_shm_room")
    readiness.arena_lost()
    assert state_of(readiness) == (DEGRADED, "no_shm_room")
    starting = Readiness(LIMITS, 0.0)
    starting.arena_lost()
    assert state_of(starting) == (STARTING, "")


@pytest.mark.parametrize("last", [("", ""), (WARMING, ""), (STARTING, ""), ("Draining", "x")])
def test_a_pod_that_was_made_ready_without_a_worker_that_was_is_one_whose_hot_set_was_not_in(
    last: tuple[str, str],
) -> None:
    readiness = resumed(*last)
    assert state_of(readiness) == (DEGRADED, "warm_deadline")
    attached(readiness)
    warm(readiness)
    assert state_of(readiness) == (WARM, "")


def test_a_worker_restarted_before_the_latch_starts_over() -> None:
    readiness = Readiness(LIMITS, 0.0, latched=False, last=(WARMING, ""))
    assert state_of(readiness) == (STARTING, "")
    attached(readiness)
    warm(readiness)
    assert state_of(readiness) == (WARM, "")


def test_an_engine_that_attaches_for_the_first_time_after_a_restart_warms_as_any_other() -> None:
    readiness = resumed(DEGRADED, "not_attached")
    attached(readiness)
    assert state_of(readiness) == (DEGRADED, "nothing_to_warm")
    warm(readiness)
    assert state_of(readiness) == (WARM, "")
    bare_first = resumed(WARM)
    bare(bare_first)
    assert state_of(bare_first) == (DEGRADED, "no_shm_room")
    attached(bare_first)
    cold(bare_first)
    assert state_of(bare_first) == (DEGRADED, "nothing_to_warm")


def pause(r: Readiness) -> None:
    r.pause(True, 20.0)


def unpause(r: Readiness) -> None:
    r.pause(False, 30.0)


@pytest.mark.parametrize(
    ("events", "state", "reason"),
    [
        ((pause,), DEGRADED, "paused"),
        ((attached, pause, late), DEGRADED, "paused"),
        ((attached, warm, pause), DEGRADED, "paused"),
        ((pause, unpause), DEGRADED, "resumed"),
        ((pause, unpause, healthy, late), DEGRADED, "not_attached"),
        ((pause, unpause, attached, late), DEGRADED, "resumed"),
        ((pause, unpause, attached, warm), WARM, ""),
        ((attached, pause, unpause), DEGRADED, "resumed"),
        ((attached, pause, unpause, cold), DEGRADED, "nothing_to_warm"),
        ((attached, pause, warm, unpause), WARM, ""),
        ((attached, warm, pause, unpause), WARM, ""),
        ((attached, cold, pause, unpause), DEGRADED, "nothing_to_warm"),
        ((bare, pause, unpause), DEGRADED, "no_shm_room"),
        ((unpause,), STARTING, ""),
    ],
)
def test_a_paused_pool_is_ready_at_once_and_afterwards_what_it_would_have_been(
    events: tuple[Callable[[Readiness], None], ...], state: str, reason: str
) -> None:
    readiness = after(*events)
    assert state_of(readiness) == (state, reason)
    assert readiness.ready is (state in (WARM, DEGRADED))


@pytest.mark.parametrize(
    ("events", "lasting"),
    [
        ((attached, pause), (DEGRADED, "resumed")),
        ((attached, warm, pause), (WARM, "")),
        ((attached, warm), (WARM, "")),
        ((attached,), (WARMING, "")),
    ],
)
def test_the_next_worker_is_told_what_lasts_beyond_a_pause(
    events: tuple[Callable[[Readiness], None], ...], lasting: tuple[str, str]
) -> None:
    assert after(*events).lasting == lasting
    if lasting == (DEGRADED, "resumed"):
        following = resumed(*lasting)
        attached(following)
        cold(following)
        assert state_of(following) == (DEGRADED, "nothing_to_warm")


def test_limits_may_change_on_the_way() -> None:
    readiness = after(attached)
    readiness.limit(Limits(5.0, 1.0))
    readiness.tick(14.0)
    assert readiness.state == WARMING
    readiness.tick(15.0)
    assert state_of(readiness) == (DEGRADED, "warm_deadline")


def test_an_engine_that_is_never_seen_healthy_holds_its_pod_back_for_a_bounded_time() -> None:
    readiness = Readiness(Limits(100.0, 30.0, start_seconds=600.0), 1000.0)
    readiness.tick(1599.0)
    assert not readiness.ready
    readiness.tick(1600.0)
    assert (readiness.state, readiness.reason) == (DEGRADED, "not_attached")
    readiness.attached(1700.0)
    assert readiness.ready
