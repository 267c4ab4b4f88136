"""Which members of a pool don't reach each other, by what they say themselves.

Each names the members that have answered it within the last seconds. A worker that has just started is not known yet,
and knows nobody: it is left out for a while. And one look may fall into a bad moment: a pair is told once it has been
apart at every look for some time.
"""

from collections.abc import Hashable, Sequence

from kvpool_contract.status import AgentStatus

ACQUAINTED_SECONDS = 20.0
APART_SECONDS = 15.0

Pair = tuple[str, str]


def unreached(statuses: Sequence[AgentStatus], now: float) -> list[Pair]:
    """Pairs of members of which the first does not reach the second, though both answer. now: seconds since 1970."""
    settled = [status for status in statuses if now - status.started_at >= ACQUAINTED_SECONDS]
    members = sorted(status.member for status in settled)
    live = {status.member: {peer.member for peer in status.peers if peer.live} for status in settled}
    everybody = set(members)
    return [(one, other) for one in members for other in sorted(everybody - live[one] - {one})]


class Links:
    """What was seen at former looks, by pool."""

    def __init__(self) -> None:
        self._since: dict[Hashable, dict[Pair, float]] = {}

    def apart(self, pool: Hashable, statuses: Sequence[AgentStatus], now: float) -> list[Pair]:
        """The pairs that have been apart for APART_SECONDS. now: seconds since 1970."""
        before = self._since.get(pool, {})
        self._since[pool] = {pair: before.get(pair, now) for pair in unreached(statuses, now)}
        return [pair for pair, since in self._since[pool].items() if now - since >= APART_SECONDS]

    def forget(self, pool: Hashable) -> None:
        self._since.pop(pool, None)
