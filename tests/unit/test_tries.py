"""When what is refused is tried again."""

from kvpool_agent.policy.tries import LONGEST_TRY_SECONDS, MAX_TRIES, TRY_SECONDS, Tries


def times(tries: Tries, way: str, since: int, until: int) -> list[int]:
    """At which of these seconds it is tried, asked in each of them."""
    return [now for now in range(since, until) if tries.due(way, float(now))]


def test_a_way_that_stays_refused_is_tried_ever_more_rarely_and_each_way_by_itself() -> None:
    tries = Tries()
    assert (TRY_SECONDS, LONGEST_TRY_SECONDS) == (5.0, 60.0)
    assert times(tries, "a", 0, 300) == [0, 5, 15, 35, 75, 135, 195, 255]
    assert times(tries, "b", 300, 307) == [300, 305]


def test_a_way_that_pays_again_begins_anew_and_is_not_tried_sooner_than_ever() -> None:
    tries = Tries()
    assert times(tries, "a", 0, 80) == [0, 5, 15, 35, 75]
    tries.pay(["a", "never tried"])
    assert times(tries, "a", 76, 200) == [80, 90, 110, 150]
    assert tries.due("never tried", 0.0)


def test_it_remembers_so_many_ways_at_most() -> None:
    tries = Tries()
    for n in range(MAX_TRIES + 1):
        assert tries.due(str(n), 0.0)
    assert tries.due("0", 0.0), "the oldest is forgotten"
    assert not tries.due(str(MAX_TRIES), 0.0)
