"""The entries that this member keeps as a home: which member has announced which blocks. Hints, in bounded memory.

Each holder has a lease, kept by its heartbeat; when it lapses, or the member is there in another incarnation, all its
entries go at once. A holder has a share that it can't exceed, and above the bound of all the one with the most entries
loses its oldest: who announces without measure pushes out nobody but itself. What is dropped so comes again with the
holder's next round of announcements.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvpool_agent.account import Account
from kvpool_agent.peer.frames import MAX_HOLDERS

MAX_ENTRIES = 262_144
SHARES = 8  # a holder has one of so many at most
MAX_MEMBERS = 1024
LEASE_SECONDS = 10.0

# member and incarnation
Holder = tuple[str, str]


@dataclass(eq=False)
class _Record:
    holder: Holder
    lease: int
    expires: float
    heads: dict[bytes, bytes] = field(default_factory=dict)  # by key, the oldest first: first key of the group


class Entries:
    """Any thread may call. Counts `directory_dropped`: entries that had no room."""

    def __init__(self, account: Account, limit: int = MAX_ENTRIES, clock: Callable[[], float] = time.monotonic) -> None:
        self._account = account
        self._limit = limit
        self._share = max(1, limit // SHARES)
        self._clock = clock
        self._lock = threading.Lock()
        self._records: dict[str, _Record] = {}
        self._by_key: dict[bytes, list[_Record]] = {}
        self._count = 0
        self._leases = 0

    def __len__(self) -> int:
        return self._count

    @property
    def holders(self) -> int:
        """Members whose lease runs."""
        with self._lock:
            self._expire()
            return len(self._records)

    def renew(self, holder: Holder) -> int:
        """The holder lives; the number of its lease, 0 when there is no place for it."""
        with self._lock:
            record = self._record(holder)
            return record.lease if record is not None else 0

    def announce(
        self, holder: Holder, groups: Mapping[bytes, Sequence[bytes]], withdrawn: Sequence[bytes], *, fresh: bool
    ) -> int:
        """Takes the keys of each group, by its first key, and takes others back; fresh: all that was told before goes.
        Returns the number of the lease, as `renew`."""
        with self._lock:
            record = self._record(holder)
            if record is None:
                return 0
            for key in [*record.heads] if fresh else withdrawn:
                if key in record.heads:
                    self._drop(record, key)
            for head, keys in groups.items():
                for key in keys:
                    self._add(record, key, head)
            return record.lease

    def where(self, keys: Sequence[bytes]) -> list[tuple[Holder, list[bool]]]:
        """Who holds which of these: at most 32 members, those with the longest runs from the first key on."""
        rows: dict[_Record, list[bool]] = {}
        with self._lock:
            self._expire()
            for i, key in enumerate(keys):
                for record in self._by_key.get(key, ()):
                    rows.setdefault(record, [False] * len(keys))[i] = True
        best = sorted(rows.items(), key=lambda item: (_run(item[1]), sum(item[1])), reverse=True)[:MAX_HOLDERS]
        return [(record.holder, row) for record, row in best]

    def keep(self, is_home: Callable[[bytes], bool]) -> None:
        """Drops the entries of groups, by their first key, whose home this member is no more: nobody withdraws them."""
        with self._lock:
            heads = {head for record in self._records.values() for head in record.heads.values()}
        # who the homes are takes a while for many groups, in which heartbeats must not wait
        gone = {head for head in heads if not is_home(head)}
        with self._lock:
            for record in self._records.values() if gone else ():
                for key in [key for key, head in record.heads.items() if head in gone]:
                    self._drop(record, key)

    # -- inside the lock -----------------------------------------------------------------------------

    def _record(self, holder: Holder) -> _Record | None:
        """The holder's record, its lease running anew."""
        self._expire()
        member, _ = holder
        record = self._records.get(member)
        if record is not None and record.holder != holder:
            self._forget(record)
            record = None
        if record is None:
            if len(self._records) >= MAX_MEMBERS:
                return None
            self._leases += 1
            record = self._records[member] = _Record(holder, self._leases, 0.0)
        record.expires = self._clock() + LEASE_SECONDS
        return record

    def _expire(self) -> None:
        now = self._clock()
        for record in [record for record in self._records.values() if record.expires <= now]:
            self._forget(record)

    def _forget(self, record: _Record) -> None:
        for key in list(record.heads):
            self._drop(record, key)
        del self._records[record.holder[0]]

    def _add(self, record: _Record, key: bytes, head: bytes) -> None:
        if key in record.heads:
            del record.heads[key]  # the newest now
        else:
            if len(record.heads) >= self._share:
                self._push_out(record)
            elif self._count >= self._limit:
                self._push_out(max(self._records.values(), key=lambda one: len(one.heads)))
            self._by_key.setdefault(key, []).append(record)
            self._count += 1
        record.heads[key] = head

    def _push_out(self, record: _Record) -> None:
        self._drop(record, next(iter(record.heads)))
        self._account.count("directory_dropped")

    def _drop(self, record: _Record, key: bytes) -> None:
        del record.heads[key]
        self._count -= 1
        holders = self._by_key[key]
        holders.remove(record)
        if not holders:
            del self._by_key[key]


def _run(row: Sequence[bool]) -> int:
    return row.index(False) if False in row else len(row)
