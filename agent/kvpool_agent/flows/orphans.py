"""Finding out which blocks are orphans: those whose parent neither this arena nor another member holds.

The members themselves are asked, now and then and a bounded number of blocks at a time: an entry of the directory may
be late, and a block that is taken for an orphan goes first. Without orphans nobody is asked.
"""

import logging
import random

from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.directory.members import MemberView
from kvpool_agent.flows.watch import SlabWatch
from kvpool_agent.peer.connection import PeerError
from kvpool_agent.peer.dial import Dialer
from kvpool_agent.store.slab import Slab, Slabs

log = logging.getLogger("kvpool.orphans")

LOOK_SECONDS = 5.0
ASK_SECONDS = 1.0
MAX_BLOCKS = 1024
MAX_ASKED = 64


class OrphanCheck(SlabWatch):
    """One thread."""

    every = True

    def __init__(self, slabs: Slabs, members: MemberView, dialer: Dialer, breakers: Breakers) -> None:
        super().__init__(slabs, "orphans", LOOK_SECONDS)
        self._members, self._dialer, self._breakers = members, dialer, breakers

    def look(self, slab: Slab) -> None:
        """Judges the blocks whose parent is not here. One that could not be asked about keeps the last judgement."""
        orphans = slab.arena.orphans()
        orphans = random.sample(orphans, min(MAX_BLOCKS, len(orphans)))
        parents = list(dict.fromkeys(parent for _, parent in orphans))
        members = self._members.live(slab.fingerprint) if parents else []
        held: set[bytes] = set()
        silent = len(members) > MAX_ASKED
        for member in members[:MAX_ASKED]:
            left = [parent for parent in parents if parent not in held]
            if not left:
                break
            if not self._breakers.usable(member.address):
                silent = True
                continue
            try:
                found = self._dialer.locate(member.address, slab.id, left, ASK_SECONDS)
                held.update(parent for parent, here in zip(left, found, strict=True) if here)
            except PeerError as error:
                silent = True
                log.debug("asking %s for parents: %s", member.address, error)
        for key, parent in orphans:
            if parent in held or not silent:
                slab.arena.judge_orphan(key, held_elsewhere=parent in held)
