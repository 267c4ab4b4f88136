"""Members whose agents may have answered, and what those that did have told, in words."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol, TypeVar

from kvpool_contract.reasons import explain
from kvpool_contract.status import AgentStatus

MAX_DETAILS = MAX_NAMED = 3


class Told(Protocol):
    """A member whose agent may have answered."""

    @property
    def status(self) -> AgentStatus | None: ...


One = TypeVar("One", bound=Told)


def meaning(reasons: Iterable[str]) -> str:
    """What each reason means, once."""
    return " ".join(explain(word) for word in dict.fromkeys(reasons))


def seen(details: Iterable[str]) -> str:
    """What was seen, in brackets after a blank, some of it; empty where nothing was."""
    some = list(islice(dict.fromkeys(filter(None, details)), MAX_DETAILS))
    return f" ({'; '.join(some)})" if some else ""


def few(names: Sequence[str]) -> str:
    """Some of these, and how many there are more."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
