"""Whether sharing pays, as the pool's members have measured it lately, all together.

Told in percent of what computing the shared blocks would take, in steps of five: sums fade as time passes, all alike,
so that a part of one stays as it is while nothing happens.
"""

from collections.abc import Sequence

from kvpool_contract.status import AgentStatus, Benefit

STEP = 5  # percent
ENOUGH = 20  # requests that have loaded, before anything is said
TERMS = {
    "loading": "loading",
    "waited": "waiting for plans that brought nothing",
    "stalled": "decoding slowed by loads",
    "written": "decoding slowed by stores",
    "displaced": "computing again what copies had pushed out",
}


def beneficial(statuses: Sequence[AgentStatus]) -> tuple[bool, str, str] | None:
    """Whether it does, the reason and a sentence; None while too few requests have loaded anything."""
    told = [status.benefit for status in statuses]
    saved, waiting = _sum(told, "saved"), _sum(told, "waiting")
    if sum(benefit.loads for benefit in told) < ENOUGH or saved <= 0:
        return None
    spent = [f"{_percent(_sum(told, term), saved)} % {words}" for term, words in TERMS.items()]
    sentence = (
        "Of the time that computing the shared blocks would have taken lately, requests were spared "
        f"{_percent(waiting, saved)} % and the engines {_percent(_sum(told, 'gpu'), saved)} %. Spent: "
        f"{', '.join(spent)}."
    )
    if waiting >= 0:
        return True, "Saves", sentence
    advice = "A faster network, larger prompts or more memory make sharing pay; loading.mode Never ends it."
    return False, "CostsMoreThanItSaves", f"{sentence} {advice}"


def _sum(told: Sequence[Benefit], term: str) -> float:
    return float(sum(getattr(benefit, term) for benefit in told))


def _percent(part: float, whole: float) -> int:
    return STEP * round(100 * part / whole / STEP)
