"""Whether the members reach the external store that the pool asks for.

A store that is slow or gone costs misses and is told. The pool is no worse for it than one without a store, so its
phase stays.
"""

from collections.abc import Sequence

from kvpool_operator.desired.heard import One, Told, meaning, seen

NOT_REACHED, OPENING = "StoreNotReached", "StoreOpening"


def without_store(members: Sequence[One]) -> tuple[list[One], list[One]]:
    """Of the members that answer: those that do without the store, or can't write there, and those that don't know
    yet."""
    stores = [(m, m.status.store) for m in members if m.status is not None]
    opening = [m for m, store in stores if store.state == "opening"]
    return [m for m, store in stores if store.state not in ("opening", "ready") or store.reason], opening


def why(members: Sequence[Told]) -> str:
    """Each reason once, with what was seen."""
    stores = [m.status.store for m in members if m.status is not None]
    words = [meaning(store.reason for store in stores if store.reason)]
    if any(store.state == "none" for store in stores):
        words.append("Their pods were made without it: make them anew.")
    return " ".join(filter(None, words)) + seen(store.detail for store in stores)
