"""Which format an engine that has not attached yet will have: the one that most of its kind have already.

A guess, to fetch by while the engine loads its weights; the attach proves it or everything is dropped. Members of
another template, of none, or not ready say nothing: a new revision may well be of another format.
"""

import collections
from collections.abc import Iterable
from dataclasses import dataclass

READY = "Ready"  # how the ready states begin


@dataclass(frozen=True)
class Told:
    """What a live member says of itself: its template's hash, its state, its format (hex), bytes of a slot."""

    address: str
    template: str
    state: str
    format: str
    slot_bytes: int


@dataclass(frozen=True)
class Expected:
    """A format (hex), bytes of a slot, and the members that have it."""

    format: str
    slot_bytes: int
    addresses: tuple[str, ...]


def expected_format(template: str, members: Iterable[Told]) -> Expected | None:
    """What most ready members of this template have; of equally many the lowest name, so that all newcomers expect
    the same. None where nobody tells."""
    votes: dict[tuple[str, int], list[str]] = collections.defaultdict(list)
    for member in members:
        if template and member.template == template and member.state.startswith(READY) and member.format:
            votes[(member.format, member.slot_bytes)].append(member.address)
    if not votes:
        return None
    (found, slot_bytes), addresses = min(votes.items(), key=lambda vote: (-len(vote[1]), vote[0]))
    return Expected(found, slot_bytes, tuple(sorted(addresses)))
