"""Local members that know each other, with blocks that so many requests have contained."""

import time
from collections.abc import Callable, Sequence

from local_member import LocalMember, bytes_of, until

from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of

Come = Callable[..., LocalMember]


def put(slab: Slab, keys: Sequence[bytes], requests: int) -> None:
    """Blocks of a chain that so many requests have contained."""
    for i, key in enumerate(keys):
        slots = slab.arena.reserve(1, time.monotonic())
        if slots:
            slab.view(slots[0])[:] = bytes_of(key)
            parent = keys[i - 1] if i else b""
            slab.arena.commit(key, parent, slots[0], tag_of(key, slab.view(slots[0])), foreign=False)
    for _ in range(requests):
        slab.heat.count(keys, time.monotonic())
        slab.arena.use(keys)


def sees(leaver: LocalMember, *others: LocalMember) -> None:
    """Until all of them know each other."""
    for one in (leaver, *others):
        lives = {other.life for other in (leaver, *others) if other is not one}

        def known(one: LocalMember = one, lives: set[tuple[str, str]] = lives) -> bool:
            live = [m.welcome for m in one.members.live(one.slab.fingerprint) if m.welcome is not None]
            return lives <= {(welcome.member, welcome.incarnation) for welcome in live}

        until(f"{one.uid} sees the others", known)


def holders(keys: Sequence[bytes], *members: LocalMember) -> list[int]:
    """How many of the members hold each."""
    rows = [member.slab.arena.held(keys) for member in members]
    return [sum(column) for column in zip(*rows, strict=True)]
