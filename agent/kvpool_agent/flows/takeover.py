"""Taking what another member has offered, since it leaves or alone holds it: fetched within this member's own bounds,
best first, and nothing that is hotter here makes room for it. What has come from one that leaves is this member's own
from then on: as a replica copy it would be the first to make room, with no other copy behind it. A member that begins
to leave while it takes blocks over answers that it has taken none.

How hot a block is only its giver says, and a certificate does not make a member honest: so what one member brings has a
part of the slots at most, whatever it says.
"""

import collections
import threading
import time
from collections.abc import Callable, Sequence

from kvpool_agent.account import Account
from kvpool_agent.directory.members import MemberView
from kvpool_agent.flows.fetch import Fetcher, Wanted
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.policy.purposes import DRAIN, REPLICATE
from kvpool_agent.store.slab import Slabs

MAX_HEAT = 1e9  # whatever a member says
PART = 0.5  # of the slots, for what one member brings within
PART_SECONDS = 3600.0
MAX_GIVERS = 1024  # that are remembered


class TakeOver:
    """peer.serve.Taker. Counts `offered_blocks`, and `offered_over_part` those of them that were not looked at."""

    def __init__(
        self, slabs: Slabs, members: MemberView, fetcher: Fetcher, account: Account, willing: Callable[[bool], bool]
    ) -> None:
        """willing(copy): whether this member takes anything now."""
        self._slabs, self._members, self._fetcher = slabs, members, fetcher
        self._account, self._willing = account, willing
        self._lock = threading.Lock()
        # by member and slab: since when, and how many blocks
        self._brought: collections.OrderedDict[tuple[str, bytes], tuple[float, int]] = collections.OrderedDict()

    def take(
        self, giver: tuple[str, str], slab: bytes, blocks: Sequence[HotBlock], seconds: float, *, copy: bool
    ) -> list[bool]:
        found, address = self._slabs.of(slab), self._address(giver)
        self._account.count("offered_blocks", len(blocks))
        if found is None or not found.space.open or address is None or not blocks or not self._willing(copy):
            return [False] * len(blocks)
        now, keys = time.monotonic(), [block.key for block in blocks]
        before = found.arena.held(keys)
        part = blocks[: self._begin(giver[0], slab, len(blocks), int(found.arena.slot_count * PART), now)]
        if not part:
            return before
        coldest = min(block.heat if 0 <= block.heat <= MAX_HEAT else 0.0 for block in part)
        wanted = [Wanted(block.key, block.parent) for block in part]
        purpose, may_go = REPLICATE if copy else DRAIN, found.colder_than(coldest, now)
        self._fetcher.fetch(found, address, wanted, purpose, now + seconds, may_go=may_go)
        held = found.arena.held(keys)
        came = [b for b, was, here in zip(blocks, before, held, strict=True) if here and not was]
        self._end(giver[0], slab, len(part) - len(came))
        if not copy:
            # whoever counted their requests is gone: they stay as hot as they were, for eviction and for newcomers
            found.arena.adopt([block.key for block in came])
            with found.heat_lock:
                found.heat.inherit([b for b in came if 0 <= b.heat <= MAX_HEAT], time.monotonic())
        # last: where this member begins to leave after that, it finds these blocks among those that it hands over
        return held if self._willing(copy) else [False] * len(blocks)

    def _begin(self, member: str, slab: bytes, blocks: int, most: int, now: float) -> int:
        """How many of so many blocks the member may bring, which it then does."""
        with self._lock:
            since, brought = self._brought.pop((member, slab), (now, 0))
            if now - since > PART_SECONDS:
                since, brought = now, 0
            found = max(0, min(blocks, most - brought))
            self._brought[member, slab] = since, brought + found
            while len(self._brought) > MAX_GIVERS:
                self._brought.popitem(last=False)
        if found < blocks:
            self._account.count("offered_over_part", blocks - found)
        return found

    def _end(self, member: str, slab: bytes, blocks: int) -> None:
        """So many of them did not come."""
        with self._lock:
            since, brought = self._brought.get((member, slab), (0.0, 0))
            if brought:
                self._brought[member, slab] = since, max(0, brought - blocks)

    def _address(self, giver: tuple[str, str]) -> str | None:
        """Where the member is, in the life that has offered."""
        for member in self._members.all():
            welcome = member.welcome
            if welcome is not None and (welcome.member, welcome.incarnation) == giver:
                return member.address
        return None
