"""What the engine holds is offered again after any doubtful moment, until a minute of nothing new."""

from kvpool_client.offers import QUIET_SECONDS, Offers


def test_nothing_is_offered_again_before_a_doubtful_moment() -> None:
    offers = Offers()
    offers.confirmed(1.0)
    assert not offers.offer_again(1000.0)


def test_offering_goes_on_until_a_whole_minute_of_confirmed_offers() -> None:
    offers = Offers()
    offers.unconfirmed(0.0)
    assert offers.offer_again(1e6)  # silence confirms nothing
    offers.confirmed(10.0)
    offers.confirmed(50.0)
    assert offers.offer_again(10.0 + QUIET_SECONDS - 0.1)
    assert not offers.offer_again(10.0 + QUIET_SECONDS)
    assert not offers.offer_again(10.0 + QUIET_SECONDS + 1)


def test_one_new_block_starts_the_minute_anew() -> None:
    offers = Offers()
    offers.unconfirmed(0.0)
    offers.confirmed(1.0)
    offers.unconfirmed(50.0)
    assert offers.offer_again(1.0 + QUIET_SECONDS)
    offers.confirmed(70.0)
    assert offers.offer_again(70.0 + QUIET_SECONDS - 0.1)
    assert not offers.offer_again(70.0 + QUIET_SECONDS)
