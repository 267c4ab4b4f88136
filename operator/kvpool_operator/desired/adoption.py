"""Which authorities the agents say that they trust: a new one may sign once all of them have taken it over."""

from collections.abc import Iterable, Sequence

from kvpool_operator.desired.status import Member
from kvpool_operator.desired.trust import MANAGED

_Key = tuple[str, str]  # Kubernetes namespace and name of a pool


class Adoption:
    """What the last pass over each pool has heard. An agent that is silent has said nothing; one that has not started
    yet begins with the files that lie there by then."""

    def __init__(self) -> None:
        self._said: dict[_Key, set[str]] = {}

    def heard(self, pool: _Key, members: Sequence[Member]) -> None:
        asked = [m for m in members if m.injected and m.expected and m.tls == MANAGED]
        self._said[pool] = {m.status.tls.bundle if m.status is not None else "" for m in asked}

    def forget(self, pool: _Key) -> None:
        self._said.pop(pool, None)

    def complete(self, pools: Iterable[_Key], bundle: str) -> bool:
        """Whether every agent of all these pools has said that it trusts this bundle (its digest)."""
        return all(pool in self._said and self._said[pool] <= {bundle} for pool in pools)
