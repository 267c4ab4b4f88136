"""Announcing: what this member holds is told to the two homes of its group, what it has evicted is withdrawn there.

A queue for each home, sent in batches; the arena is the truth behind it. Whatever may have been lost on the way (a
queue that ran over, a home that came anew or dropped the lease, changes that nobody took in time) is made good by
telling that home everything from the arena once more; and so that no entry stays lost for ever, that is done every few
minutes in any case. When the view changes, what has a new home is told to it. Entries that this member keeps as a home,
of groups whose home it is no more, go when the view has settled: until then the old home is asked beside the new one.
They go once a minute, too: a holder whose view differed for a moment has told them, and will not withdraw them here.
"""

import itertools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvpool_agent.account import Account
from kvpool_agent.directory.entries import Entries
from kvpool_agent.directory.homes import Homes
from kvpool_agent.directory.members import Member, MemberView
from kvpool_agent.flows.watch import SlabWatch
from kvpool_agent.peer.connection import PeerError
from kvpool_agent.peer.dial import Dialer
from kvpool_agent.peer.frames import DIRECTORY_VERSION
from kvpool_agent.policy.homes import View
from kvpool_agent.store.arena import Arena
from kvpool_agent.store.slab import Slab, Slabs

log = logging.getLogger("kvpool.announce")

LOOK_SECONDS = 0.1
SEND_SECONDS = 1.0
RETRY_SECONDS = 5.0
ROUND_SECONDS = 300.0
KEEP_SECONDS = 60.0
BATCH_BLOCKS = 1024
LEAST_QUEUE = 65_536
WITHDRAWN = b""


@dataclass(eq=False)
class _Home:
    """What is to be told to one life of one member: for each key its group's first one, or WITHDRAWN."""

    pending: dict[bytes, bytes] = field(default_factory=dict)
    lease: int = 0  # under which it keeps what it was told
    fresh: bool = False  # what it was told before is not true any more
    whole: bool = True  # everything is to be told
    retry_at: float = 0.0


class Announcer(SlabWatch):
    """One thread, which a home that is silent holds up for a second at most. Counts `announce_calls`,
    `announced_blocks`, `withdrawn_blocks`, `announce_failed`, `announced_again` (all told to a home once more)."""

    def __init__(
        self,
        slabs: Slabs,
        own: str,
        members: MemberView,
        homes: Homes,
        entries: Entries,
        dialer: Dialer,
        account: Account,
        withdrawn: Callable[[], bool] = lambda: False,
    ) -> None:
        """own: this member's UID. withdrawn: whether nothing that is here is to be told; then all is taken back."""
        super().__init__(slabs, "announcer", LOOK_SECONDS)
        self._own = own
        self._withdrawn, self._gone = withdrawn, False
        self._members, self._homes, self._entries = members, homes, entries
        self._dialer, self._account = dialer, account
        self._view = View()
        self._kept: View | None = None  # as of which view the own entries have been looked through, and until when
        self._keep_at = 0.0
        self._told: dict[tuple[str, str], _Home] = {}
        self._round_at = time.monotonic() + ROUND_SECONDS

    def look(self, slab: Slab) -> None:
        """Takes up what has changed, here and among the members, and sends what is to be told."""
        view = self._homes.look(slab.fingerprint)
        at = {
            m.welcome.member: m
            for m in self._members.live(slab.fingerprint)
            if m.welcome is not None and m.version >= DIRECTORY_VERSION
        }
        homes = self._homes_of(view)
        self._follow(slab.arena, view, homes)
        for uid, home in homes.items():
            self._check_lease(at.get(uid), home)
        self._tell_all(slab.arena, view, {uid: home for uid, home in homes.items() if home.whole})
        if self._homes.settled and (view is not self._kept or time.monotonic() >= self._keep_at):
            self._kept, self._keep_at = view, time.monotonic() + KEEP_SECONDS
            self._entries.keep(lambda head: self._own in view.homes(head))
        for uid, home in homes.items():
            if uid in at and time.monotonic() >= home.retry_at:
                self._send(at[uid].address, home)

    # -- what is to be told --------------------------------------------------------------------------

    def _homes_of(self, view: View) -> dict[str, _Home]:
        """The state of each home but this member; those of lives that are over are forgotten."""
        lives = {(uid, life) for uid, life in view.members.items() if uid != self._own}
        self._told = {life: self._told.get(life) or _Home() for life in lives}
        return {uid: home for (uid, _), home in self._told.items()}

    def _follow(self, arena: Arena, view: View, homes: Mapping[str, _Home]) -> None:
        before, self._view = self._view, view
        changes, lost = arena.changes()
        was_gone, self._gone = self._gone, self._withdrawn()
        if self._gone:
            changes, lost = [], False
        lost |= self._gone is not was_gone
        now = time.monotonic()
        if lost or now >= self._round_at:
            self._round_at = now + ROUND_SECONDS
            if not lost:
                self._tell(arena, view, homes)
            for home in homes.values():
                home.whole |= lost
        if before is not view:
            for key, head in self._placed(arena):
                for uid in view.homes(head):
                    if uid in homes and uid not in before.homes(head):
                        homes[uid].pending[key] = head
        most = max(LEAST_QUEUE, 2 * arena.slot_count)
        for change in changes:
            for uid in view.homes(change.head):
                if uid in homes:
                    home = homes[uid]
                    home.pending[change.key] = change.head if change.held else WITHDRAWN
                    if len(home.pending) > most:
                        home.whole = True

    @staticmethod
    def _check_lease(member: Member | None, home: _Home) -> None:
        """A home that has dropped what it was told gives leases of higher numbers."""
        if member is not None and home.lease and member.lease > home.lease:
            home.lease, home.whole = member.lease, True

    def _tell_all(self, arena: Arena, view: View, homes: Mapping[str, _Home]) -> None:
        for home in homes.values():
            if home.lease:
                self._account.count("announced_again")
            home.pending = {}
            home.fresh, home.whole = True, False
        self._tell(arena, view, homes)

    def _tell(self, arena: Arena, view: View, homes: Mapping[str, _Home]) -> None:
        """All that lies here, to its homes among these; the arena is looked through once, however many there are."""
        for key, head in self._placed(arena) if homes else ():
            for uid in view.homes(head):
                if uid in homes:
                    homes[uid].pending[key] = head

    def _placed(self, arena: Arena) -> list[tuple[bytes, bytes]]:
        return [] if self._gone else arena.placed()

    # -- sending -------------------------------------------------------------------------------------

    def _send(self, address: str, home: _Home) -> None:
        """All that this home is to be told; what it did not take stays in the queue, for a later try."""
        while not self._ended.is_set() and (home.pending or (home.fresh and home.lease)):
            batch = dict(itertools.islice(home.pending.items(), BATCH_BLOCKS))
            groups: dict[bytes, list[bytes]] = {}
            for key, head in batch.items():
                if head != WITHDRAWN:
                    groups.setdefault(head, []).append(key)
            withdrawn = [key for key, head in batch.items() if head == WITHDRAWN]
            self._account.count("announce_calls")
            try:
                lease = self._dialer.announce(address, groups, withdrawn, SEND_SECONDS, fresh=home.fresh)
            except PeerError as error:
                self._account.count("announce_failed")
                home.retry_at = time.monotonic() + RETRY_SECONDS
                log.debug("announcing to %s: %s", address, error)
                return
            self._account.count("announced_blocks", len(batch) - len(withdrawn))
            self._account.count("withdrawn_blocks", len(withdrawn))
            home.fresh = False
            for key in batch:
                del home.pending[key]
            if home.lease and lease > home.lease:
                home.whole = True
            home.lease = max(home.lease, lease)
