"""The external store as a tier: what is written there, when, and what is known to lie there.

Blocks are written ahead, as to the disk: own ones that a second request has contained, while they lie in the arena. The
store is asked first what it has: what another member has written is not written again, and lives longer from then on.
One thread writes, so many bytes a second at most; nobody waits for it, and what waits is a list of keys. After it has
written, and at the end, it leaves the hot list there, by which a pool that has been away begins.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from kvpool_agent.account import Account
from kvpool_agent.policy.bandwidth import TokenBucket
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.store.arena import Held
from kvpool_agent.store.disk.lanes import patience
from kvpool_agent.store.disk.pending import Pending
from kvpool_agent.store.external import blocks, hotlist
from kvpool_agent.store.external.access import Access
from kvpool_agent.store.external.objects import FULL, SLOW, Objects, StoreError
from kvpool_agent.store.intact import intact
from kvpool_agent.store.sealing import FileKey
from kvpool_agent.store.slab import Slab
from kvpool_contract.external import Store

log = logging.getLogger("kvpool.external")

AT_A_TIME = 16  # blocks that the store is asked about together, before they are written
ASK_SECONDS = 1.0
LOOK_SECONDS = 0.2
LIST_SECONDS = 5.0  # from one hot list to the next at least
END_SECONDS = 2.0  # for the last one
KNOWN_KEYS = 65_536
RENEWED_AFTER = 0.25  # of the time to live; what was used sooner is not told again


class ExternalTier:
    """`start` once; any thread may call the rest. It is a `LowerTier`."""

    def __init__(
        self,
        config: Store,
        objects: Objects,
        account: Account,
        slabs: Callable[[], Sequence[Slab]],
        pool: str,
        member: str,
    ) -> None:
        """pool: its name; member: this one's."""
        self.access = Access(objects, account)
        self.writer = blocks.writer_of(member)
        self._config, self._account, self._slabs, self._pool = config, account, slabs, pool
        self.paused = False
        self._changed = threading.Condition()
        self._pending: dict[int, Pending] = {}
        self._known: OrderedDict[tuple[int, bytes], float] = OrderedDict()  # when its life there was renewed
        self._unlisted: set[int] = set()  # slabs of which blocks were written since their list was
        self._list_at = 0.0
        self._bucket: TokenBucket | None = None
        self._until = float("inf")  # when it has to end
        self.ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="kvpool-store", daemon=True).start()

    def close(self, seconds: float = 0.0) -> None:
        """Ends it: what waits is written for so long at most, the hot list in any case."""
        with self._changed:
            self._until = time.monotonic() + seconds
            self._changed.notify_all()
        self.ended.wait(seconds + END_SECONDS + 0.5)

    @property
    def waiting(self) -> int:
        """Blocks that are to be written."""
        with self._changed:
            return sum(len(pending) for pending in self._pending.values())

    def key_of(self, slab: Slab) -> tuple[FileKey, ...]:
        """What the slab's objects are sealed under, that of now first; none where they lie in clear."""
        return tuple(FileKey(self._pool, slab.space.name, key) for key in slab.space.files)

    def lacks_key(self, slab: Slab) -> bool:
        """Whether the slab's objects are sealed, and nothing is there to open them by. A moment later it may be: who
        writes goes by the keys that it has in hand."""
        return slab.space.keyed and not self.key_of(slab)

    def name_of(self, slab: Slab, key: bytes) -> str:
        return blocks.name_of(self._config.prefix, self._pool, slab.id, key)

    # -- what it is asked to keep --------------------------------------------------------------------

    def used(self, slab: Slab, chain: Sequence[bytes], again: Sequence[bytes]) -> None:
        """As LowerTier.used."""
        if self.paused or not again or not self.access.ready:
            return
        now = time.monotonic()
        fresh = now - RENEWED_AFTER * self._config.ttlSeconds
        told = slab.arena.may_tell(again, chain)  # first: the arena's lock may be held where this one is asked for
        with self._changed:
            run = [key for key in told if self._known.get((slab.number, key), float("-inf")) < fresh]
            dropped = self._pending.setdefault(slab.number, Pending()).add(run, now) if run else 0
            self._changed.notify_all()
        self._drop("queue_full", dropped)

    def evicting(self, slab: Slab, block: Held) -> bool:
        """As LowerTier.evicting."""
        with self._changed:
            pending = self._pending.get(slab.number)
            return pending is not None and pending.take_over(
                block, slab.arena.slot_count, slab.slot_bytes, time.monotonic()
            )

    def is_there(self, slab: Slab, key: bytes, *, renewed: bool) -> None:
        """It was found there a moment ago. renewed: and lives as long from now on as one that was just written."""
        with self._changed:
            before = self._known.get((slab.number, key), float("-inf"))
            self._known[slab.number, key] = time.monotonic() if renewed else before
            self._known.move_to_end((slab.number, key))
            while len(self._known) > KNOWN_KEYS:
                self._known.popitem(last=False)

    def is_gone(self, slab: Slab, key: bytes) -> None:
        with self._changed:
            self._known.pop((slab.number, key), None)

    # -- its own thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while time.monotonic() < self._until and not (self._until < float("inf") and not self.waiting):
            try:
                self._step()
            except StoreError as error:
                log.info("the external store: %s", error)
            except Exception:
                log.exception("the external store's tier failed")
                self._wait(1.0)
        self._drop_all("closing")
        if self.access.ready:
            for slab in self._slabs():
                self._leave_list(slab, time.monotonic() + END_SECONDS)
        self.ended.set()

    def _wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait(max(0.0, min(seconds, self._until - time.monotonic())))

    def _step(self) -> None:
        self.access.look()
        if not self.access.ready:
            self._drop_all("failed")
            self._wait(LOOK_SECONDS)
            return
        with self._changed:
            late = [(number, *pending.late(time.monotonic())) for number, pending in self._pending.items()]
        for number, keys, taken in late:
            self._give_back(number, taken)
            self._drop("late", keys + len(taken))
        for slab in self._slabs():
            self._write_next(slab)
        if self.waiting:
            return
        if self._unlisted and time.monotonic() >= self._list_at:
            for slab in self._slabs():
                self._leave_list(slab, time.monotonic() + patience(hotlist.MAX_BYTES))
        with self._changed:
            self._changed.wait_for(lambda: any(self._pending.values()) or self._until < float("inf"), LOOK_SECONDS)

    def _write_next(self, slab: Slab) -> None:
        with self._changed:
            pending = self._pending.get(slab.number)
            taken = pending.next_taken() if pending is not None else None
            keys = pending.next_run(AT_A_TIME) if pending is not None and taken is None else []
        if taken is not None:
            try:
                if not self._found_there(slab, [taken.key]):
                    self._write(slab, taken, lambda: True)
            finally:
                slab.arena.give_back([taken.slot])
        there = self._found_there(slab, keys) if keys else set()
        for place, key in enumerate(keys):
            if key in there:
                continue
            try:
                self._write_leased(slab, key)
            except StoreError as error:
                self._drop("failed", len([k for k in keys[place:] if k not in there]))
                if error.word != FULL:
                    raise
                return

    def _found_there(self, slab: Slab, keys: Sequence[bytes]) -> set[bytes]:
        """Those that lie there; they live longer from now on."""
        names = [self.name_of(slab, key) for key in keys]
        try:
            held = self.access.call(lambda objects: objects.held(names), time.monotonic() + ASK_SECONDS)
            there = [name for name, lies in zip(names, held, strict=True) if lies]
            if there:
                self.access.call(lambda objects: objects.renew(there), time.monotonic() + ASK_SECONDS)
        except StoreError as error:
            self._drop("failed", len(keys))
            if error.word == SLOW:
                self.access.failed(error)
            raise
        found = {key for key, lies in zip(keys, held, strict=True) if lies}
        for key in found:
            self.is_there(slab, key, renewed=True)
        return found

    def _write_leased(self, slab: Slab, key: bytes) -> None:
        seconds = patience(slab.slot_bytes) + slab.slot_bytes / self._config.maxBytesPerSecond
        lease, (block,) = slab.arena.lease([key], time.monotonic(), seconds)
        try:
            if block is None:
                self._drop("evicted", 1)
            elif not block.foreign:
                # a lease that is over by then: the slot may have been written to meanwhile
                self._write(slab, block, lambda: slab.arena.renew(lease, time.monotonic(), 1.0))
        finally:
            slab.arena.release(lease)

    def _write(self, slab: Slab, block: Held, kept: Callable[[], bool]) -> None:
        """Raises StoreError."""
        keys = self.key_of(slab)
        if slab.space.keyed and not keys:
            return
        if self.access.full:
            raise StoreError(FULL, "it was full a moment ago")
        self._pace(slab.slot_bytes)
        if not intact(slab, block, self._account, log, " and not written"):
            return
        name = self.name_of(slab, block.key)
        start = blocks.Start(slab.slot_bytes, slab.fingerprint, block.parent, block.tag, self.writer)
        data = blocks.encode(name, start, slab.view(block.slot), keys[0] if keys else None)
        if not kept():
            self._drop("changed", 1)
            return
        until = time.monotonic() + patience(len(data))
        self.access.call(lambda objects: objects.write(name, data), until, writes=True)
        self.is_there(slab, block.key, renewed=True)
        self._unlisted.add(slab.number)
        self._account.moved("external_out", 1, slab.slot_bytes)

    def _pace(self, size: int) -> None:
        now = time.monotonic()
        if self._bucket is None:
            self._bucket = TokenBucket(self._config.maxBytesPerSecond, size, now)
        self._bucket.retune(self._config.maxBytesPerSecond, size)
        pause = self._bucket.take(size, now)
        if pause:
            time.sleep(pause)

    # -- the hot list --------------------------------------------------------------------------------

    def _leave_list(self, slab: Slab, until: float) -> None:
        """Writes the slab's hot list, if something has been written since the last one."""
        if slab.number not in self._unlisted:
            return
        keys = self.key_of(slab)
        if slab.space.keyed and not keys:
            return
        with self._changed:
            known = {key for number, key in self._known if number == slab.number}
        own = [block for block in slab.hottest(time.monotonic(), hotlist.MAX_BLOCKS) if block.key in known]
        name = self.name_of(slab, hotlist.LIST_KEY)
        try:
            listed = hotlist.merged(self.read_list(slab, until), own)
            data = hotlist.encode(name, listed, time.time(), keys[0] if keys else None)
            if listed:
                self.access.call(lambda objects: objects.write(name, data), until, writes=True)
        except StoreError as error:
            log.info("the hot list was not left in the external store: %s", error)
        else:
            self._unlisted.discard(slab.number)
        self._list_at = time.monotonic() + LIST_SECONDS

    def read_list(self, slab: Slab, until: float) -> list[HotBlock]:
        """The hot list that lies there, empty where there is none. Raises StoreError. until: on the monotonic clock."""
        name = self.name_of(slab, hotlist.LIST_KEY)
        data = self.access.call(lambda objects: objects.read(name, 0, hotlist.MAX_BYTES), until)
        if not data:
            return []
        try:
            return hotlist.decode(name, data, time.time(), self.key_of(slab), sealed=slab.space.keyed)
        except blocks.Damaged as error:
            self.damaged(name, str(error))
            return []

    def damaged(self, name: str, detail: str) -> None:
        """An object that is not what was written: it is removed."""
        log.error("the object %s is removed: %s", name, detail)
        self._account.count("store_damaged_objects")
        try:
            self.access.begin(lambda objects: objects.remove(name), writes=True)
        except StoreError as error:
            log.info("it was not removed: %s", error)

    # -- what is given up ----------------------------------------------------------------------------

    def _drop(self, why: str, blocks_: int) -> None:
        if blocks_:
            self._account.count(f"store_dropped_{why}", blocks_)

    def _drop_all(self, why: str) -> None:
        with self._changed:
            dropped = [(number, *pending.clear()) for number, pending in self._pending.items()]
        for number, keys, taken in dropped:
            self._give_back(number, taken)
            self._drop(why, keys + len(taken))

    def _give_back(self, number: int, taken: Sequence[Held]) -> None:
        slab = next((slab for slab in self._slabs() if slab.number == number), None)
        if slab is not None and taken:
            slab.arena.give_back([block.slot for block in taken])
