"""When a certificate is renewed and when its end is told: pure, in seconds of the wall clock.

A leaf of a day is renewed before half its life is over, each member's at another moment; only where that does not
succeed its end is told, at half its life, or a week before it where that is later.
"""

RENEW_FROM, RENEW_UNTIL = 0.45, 0.5  # parts of its life
TOLD_SECONDS = 7 * 86400.0
BACK_OFF = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)  # seconds; after the last one every half minute
OK, NONE, SOON, EXPIRED = "ok", "no_certificate", "expires_soon", "expired"


def renew_at(not_before: float, not_after: float, chance: float) -> float:
    """chance: a number in [0, 1) of this member's own."""
    return not_before + (not_after - not_before) * (RENEW_FROM + (RENEW_UNTIL - RENEW_FROM) * chance)


def state_of(not_before: float, not_after: float, now: float) -> str:
    """The state that a certificate is in."""
    if now >= not_after:
        return EXPIRED
    return SOON if not_after - now < min(TOLD_SECONDS, (not_after - not_before) / 2) else OK


def pause_after(failures: int, chance: float) -> float:
    """Seconds until the next try after so many failures in a row: a little more for some than for others, so that
    not all ask at once when a signer comes back."""
    return BACK_OFF[min(failures, len(BACK_OFF)) - 1] * (1.0 + chance / 2) if failures else 0.0
