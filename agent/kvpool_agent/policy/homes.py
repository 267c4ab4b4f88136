"""Which two members keep the directory entries of a group, and whom to ask for them while views differ.

Rendezvous hashing by the group's first key over the members that are ready: all who see the same members name the same
homes, and a member that comes or goes changes the homes of its own groups alone.

Members learn of a change at different moments, and a new home has no entries at first. So for some seconds after a
change the home of now is asked, and beside it one that was a home before the change and is there still; where there is
none, as for a member that has just come itself, both homes of now.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import xxhash

HOMES = 2
SETTLE_SECONDS = 10.0  # from a change of the view to the time when all have seen it and announced what moved
MAX_REMEMBERED = 65_536  # groups whose homes a view remembers
MAX_CHANGES = 64  # remembered: in a pool that changes all the time the oldest and the newest count


def _seed(member: str) -> int:
    return xxhash.xxh3_64_intdigest(member.encode())


@dataclass(frozen=True)
class View:
    """The members that keep entries, by their UIDs, with the incarnation of each."""

    members: Mapping[str, str] = field(default_factory=dict)
    _homes: dict[bytes, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)
    _seeds: dict[str, int] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._seeds.update({member: _seed(member) for member in self.members})

    def homes(self, head: bytes) -> tuple[str, ...]:
        """The homes of the group that begins with this key, the first one first; fewer than two in a pool of fewer."""
        found = self._homes.get(head)
        if found is None:
            hashed = xxhash.xxh3_64_intdigest
            order = sorted(self._seeds, key=lambda member: (hashed(head, self._seeds[member]), member), reverse=True)
            found = tuple(order[:HOMES])
            if len(self._homes) >= MAX_REMEMBERED:
                self._homes.clear()
            self._homes[head] = found
        return found


@dataclass(frozen=True)
class Asked:
    """Whom to ask about a group: all of `now` at once, and `spare` where none of them answers."""

    now: tuple[str, ...]
    spare: tuple[str, ...]


class Views:
    """The view of now and those of the last seconds. Times in seconds of one clock."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, View]] = [(float("-inf"), View())]  # at first nobody is known

    @property
    def now(self) -> View:
        return self._seen[-1][1]

    def see(self, members: Mapping[str, str], now: float) -> bool:
        """Whether the view has changed by this."""
        while len(self._seen) > 1 and self._seen[1][0] <= now - SETTLE_SECONDS:
            self._seen.pop(0)
        if self.now.members == members:
            return False
        self._seen.append((now, View(dict(members))))
        if len(self._seen) > MAX_CHANGES:
            del self._seen[1]
        return True

    def settled(self, now: float) -> bool:
        """Whether nothing has changed for some seconds."""
        return self._seen[-1][0] <= now - SETTLE_SECONDS

    def asked(self, head: bytes) -> Asked:
        """Whom to ask about the group that begins with this key."""
        view = self.now
        homes = view.homes(head)
        before = self._seen[0][1]
        if before is view:
            return Asked(homes[:1], homes[1:])
        # of the homes before the change those that are there still, in the same life
        kept = [m for m in before.homes(head) if view.members.get(m) == before.members[m]]
        now = tuple(dict.fromkeys([*homes[:1], *kept[:1]])) if kept else homes
        return Asked(now, tuple(m for m in dict.fromkeys([*homes, *kept]) if m not in now))
