"""Whether the members reach the external store that the pool asks for.

A store that is slow or gone costs misses and is told. The pool is no worse for it than one without a store, so its
phase stays.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from kvpool_contract.reasons import explain
from kvpool_contract.status import AgentStatus

NOT_REACHED, OPENING = "StoreNotReached", "StoreOpening"
MAX_DETAILS = 3


class Told(Protocol):
    """A member whose agent may have answered."""

    @property
    def status(self) -> AgentStatus | None: ...


One = TypeVar("One", bound=Told)


def without_store(members: Sequence[One]) -> tuple[list[One], list[One]]:
    """Of the members that answer: those that do without the store, or can't write there, and those that don't know
    yet."""
    answering = [m for m in members if m.status is not None]
    stores = [(m, m.status.store) for m in answering if m.status is not None]
    opening = [m for m, store in stores if store.state == "opening"]
    return [m for m, store in stores if store.state not in ("opening", "ready") or store.reason], opening


def why(members: Sequence[One]) -> str:
    """Each reason once, with what was seen."""
    stores = [m.status.store for m in members if m.status is not None]
    words = dict.fromkeys(store.reason for store in stores if store.reason)
    details = list(dict.fromkeys(store.detail for store in stores if store.detail))[:MAX_DETAILS]
    seen = f" ({'; '.join(details)})" if details else ""
    without = "Their pods were made without it: make them anew." if any(s.state == "none" for s in stores) else ""
    return " ".join([*(explain(word) for word in words), *([without] if without else [])]) + seen
