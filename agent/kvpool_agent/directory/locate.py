"""Who holds a chain: one round of calls, each with the same short deadline.

In a pool of no more members than the chain has groups, and in any of a handful, every one of them is asked what it
holds: hardly more calls than asking homes would be, and exact at every moment. In a larger one the home of each group
is asked who has announced its blocks, and, for some seconds after a member came or went, one that was its home before.
Only where a home does not answer, its second one is asked, in a round of its own: a member that died costs a wait and
no hit. Members of the first version of the protocol keep no entries and announce nothing; they are always asked
themselves.

A member whose breaker is open is not asked: it would cost the lookup its wait, or promise what it does not serve. Nor
is one that is distrusted.

The answer is a hint: a FETCH says the truth block by block, and the hit is cut at the first gap.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from kvpool_agent.account import Account
from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.directory.entries import Entries
from kvpool_agent.directory.homes import Homes
from kvpool_agent.directory.members import Member, MemberView
from kvpool_agent.directory.table import Piece, Table
from kvpool_agent.peer.connection import PeerError
from kvpool_agent.peer.dial import Dialer
from kvpool_agent.peer.frames import DIRECTORY_VERSION, MAX_KEYS

log = logging.getLogger("kvpool.locate")

LOCATE_SECONDS = 1.0
MAX_ASKED = 64
HANDFUL = 4  # other members that are asked themselves, however short the chain is


@dataclass(frozen=True)
class Holders:
    """For each chain that was asked for, by address, which of its blocks a member holds. `reason` says why nobody may
    hold the others; `asked`: for each chain, how many of its blocks from the first on somebody was asked about who
    answered; `gone`: for each chain, which of its blocks a member that was asked itself has held and let go."""

    held: list[dict[str, Sequence[bool]]]
    reason: str
    asked: Sequence[int] = ()
    gone: Sequence[frozenset[int]] = ()

    def reason_at(self, chain: int, end: int) -> str:
        """Why the run of a chain ends here, for all that was answered."""
        unanswered = self.reason == "directory_unreachable"
        return "never_published" if unanswered and self.asked and end < self.asked[chain] else self.reason


@dataclass(frozen=True)
class _Call:
    """One call to a member about these pieces of the chains: of its own blocks, or of what was announced to it."""

    member: Member
    pieces: Sequence[Piece]
    as_home: bool


# by address, for each key that was asked for, whether it is held there: the bytes of frames.Located
_Answer = Mapping[str, Sequence[int]]


class Locator:
    """`holders(chains)` over the live members. Counts `lookups`, `lookup_calls` and
    `lookup_bytes`, of calls and their answers."""

    def __init__(
        self,
        members: MemberView,
        dialer: Dialer,
        breakers: Breakers,
        account: Account | None = None,
        homes: Homes | None = None,
        entries: Entries | None = None,
    ) -> None:
        """homes, entries: the directory and this member's part of it; without them all members are asked."""
        self._members = members
        self._dialer = dialer
        self._breakers = breakers
        self._account = account or Account()
        self._homes = homes
        self._entries = entries
        self._pool = ThreadPoolExecutor(MAX_ASKED, "kvpool-locate")

    def holders(
        self,
        fingerprint: bytes,
        chains: Sequence[Sequence[bytes]],
        deadline: float,
        starts: Sequence[int] = (),
        *,
        in_groups: bool = True,
        slab: bytes = b"",
    ) -> Holders:
        """Who holds what of each chain, which must be told from its beginning: its groups depend on that.

        deadline: on the monotonic clock; an answer is waited for a second at most. starts: for each chain, where the
        blocks begin that are asked for; 0 where it is empty. in_groups: whether holders know which group of its chain a
        block belongs to, and so at which homes it was announced; of windows, which are kept without the blocks before
        them, they don't, and the holders themselves are asked. slab: what members are asked about, the
        fingerprint where it is empty."""
        slab = slab or fingerprint
        self._account.count("lookups")
        live = self._members.live(fingerprint)
        usable = [member for member in live if self._breakers.usable(member.address)]
        passed_over = {member.address for member in live} - {member.address for member in usable}
        left_out = self._breakers.reason(passed_over) if passed_over else ""
        seconds = min(LOCATE_SECONDS, deadline - time.monotonic())
        if not usable or seconds <= 0:
            return Holders([{} for _ in chains], left_out if live and not usable else self._nobody())
        until = time.monotonic() + seconds
        table = Table(chains, MAX_KEYS, starts)
        homes = self._homes
        few = len(usable) <= max(HANDFUL, len(table.pieces))
        if homes is None or few or not in_groups or not homes.look(fingerprint).members:
            calls = [_Call(member, table.pieces, as_home=False) for member in usable[:MAX_ASKED]]
            answered = self._ask(table, calls, slab, until, usable)
            reached = table.pieces if len(answered) == len(calls) else []
        else:
            reached = self._ask_homes(table, homes, slab, until, usable)
        silent = len(reached) < len(table.pieces)
        reason = "directory_unreachable" if silent else left_out or "never_published"
        return Holders(table.held(), reason, table.reached(reached), table.gone())

    def _ask_homes(
        self, table: Table, homes: Homes, slab: bytes, until: float, usable: Sequence[Member]
    ) -> list[Piece]:
        """Asks the homes of each group; returns the groups about which one has answered."""
        able = {m.welcome.member: m for m in usable if m.welcome is not None and m.version >= DIRECTORY_VERSION}
        asked = {piece: homes.asked(table.key(piece)) for piece in table.pieces}
        old = [_Call(m, table.pieces, as_home=False) for m in usable if m.version < DIRECTORY_VERSION]
        plan = {
            piece: [m for m in who.now if m in able or m == homes.own] or list(who.spare)
            for piece, who in asked.items()
        }  # fmt: skip
        half = time.monotonic() + (until - time.monotonic()) / 2
        reached = self._home_round(table, plan, able, old[:MAX_ASKED], slab, half, usable)
        left = {
            piece: [m for m in who.spare if m not in plan[piece]]
            for piece, who in asked.items()
            if piece not in reached
        }  # fmt: skip
        if left:
            reached |= self._home_round(table, left, able, [], slab, until, usable)
        return [piece for piece in table.pieces if piece in reached]

    def _home_round(
        self,
        table: Table,
        plan: Mapping[Piece, Sequence[str]],
        able: Mapping[str, Member],
        others: Sequence[_Call],
        slab: bytes,
        until: float,
        usable: Sequence[Member],
    ) -> set[Piece]:
        """Asks each home once, about all groups that `plan` wants of it; one of them is this member itself."""
        by_home: dict[str, list[Piece]] = {}
        for piece, homes in plan.items():
            for home in homes:
                by_home.setdefault(home, []).append(piece)
        reached: set[Piece] = set()
        for home, pieces in by_home.items():
            if self._homes is not None and home == self._homes.own and self._entries is not None:
                table.add(pieces, self._addressed(self._entries.where(table.keys(pieces)), usable))
                reached.update(pieces)
        calls = [_Call(able[home], pieces, as_home=True) for home, pieces in by_home.items() if home in able]
        for call in self._ask(table, [*calls, *others], slab, until, usable):
            if call.as_home:
                reached.update(call.pieces)
        return reached

    def _ask(
        self, table: Table, calls: Sequence[_Call], slab: bytes, until: float, usable: Sequence[Member]
    ) -> list[_Call]:
        """Makes all calls at once and takes the answers into the table; returns the calls that were answered."""
        self._account.count("lookup_calls", len(calls))
        futures: dict[Future[_Answer], _Call] = {}
        for call in calls:
            futures[self._pool.submit(self._answer, table, call, slab, until, usable)] = call
        done, late = wait(futures, timeout=max(0.0, until - time.monotonic()))
        for future in late:
            if not future.cancel():  # else it has found no thread, and nobody was asked
                self._breakers.silent(futures[future].member.address)
        answered = []
        for future in done:
            call = futures[future]
            try:
                table.add(call.pieces, future.result())
                self._breakers.answered(call.member.address)
                answered.append(call)
            except PeerError as error:
                self._breakers.silent(call.member.address)
                log.debug("lookup at %s: %s", call.member.address, error)
        return answered

    def _answer(self, table: Table, call: _Call, slab: bytes, until: float, usable: Sequence[Member]) -> _Answer:
        keys, address, seconds = table.keys(call.pieces), call.member.address, until - time.monotonic()
        if call.as_home:
            return self._addressed(self._dialer.where(address, keys, seconds, self._moved), usable)
        return {address: self._dialer.located(address, slab, keys, seconds, self._moved)}

    @staticmethod
    def _addressed(found: Sequence[tuple[tuple[str, str], list[bool]]], usable: Sequence[Member]) -> _Answer:
        """Where the holders are, of those that are live and may be used now, in the life that has announced."""
        at = {(m.welcome.member, m.welcome.incarnation): m.address for m in usable if m.welcome is not None}
        return {at[holder]: row for holder, row in found if holder in at}

    def _moved(self, size: int) -> None:
        self._account.count("lookup_bytes", size)

    def _nobody(self) -> str:
        """Why there is no member to ask: others hold blocks, but none that this engine could use."""
        holding = any(m.live and m.welcome is not None and m.welcome.blocks for m in self._members.all())
        return "incompatible" if holding else "never_published"

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
