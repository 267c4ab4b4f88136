"""The external store among a request's holders, with a store that says yes: what it is asked for, in which order."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from kvpool_agent.directory.locate import Holders
from kvpool_agent.flows.external import ExternalSource
from kvpool_contract.external import STORE


class Yes:
    """A tier whose store has everything."""

    def __init__(self) -> None:
        self.access = self
        self.names: list[str] = []

    def lacks_key(self, _slab: object) -> bool:
        return False

    def name_of(self, _slab: object, key: bytes) -> str:
        return key.decode()

    def call(self, work: Callable[["Yes"], Any], _until: float) -> Any:
        return work(self)

    def held(self, names: Sequence[str]) -> list[bool]:
        self.names += names
        return [True] * len(names)


def test_what_nobody_else_holds_is_asked_for_in_the_order_of_the_chains_of_all_groups() -> None:
    tier: Any = Yes()
    chains = [[b"a0", b"a1", b"a2", b"a3"], [b"b0", b"b1", b"b2", b"b3"]]
    near = [[True, False, False, False], [False] * 4]
    lacks = [[True] * 4, [True, True, False, True]]
    found = Holders([{"peer": [False, False, True, False]}, {}], "never_published")
    told = ExternalSource(tier).among(None, chains, lacks, near, found, time.monotonic() + 5)  # type: ignore[arg-type]
    assert tier.names == ["b0", "a1", "b1", "a3", "b3"]
    assert [members.get(STORE) for members in told.held] == [
        [False, True, False, True],
        [True, True, False, True],
    ]
