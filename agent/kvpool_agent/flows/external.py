"""The external store as a source: asked last, for what neither this member nor another one holds, and read like a peer.

It stands among a request's holders under a name that is no address. So admission weighs it as it weighs members, a
fetch from it is bounded, checked and counted as any other, and what it does not bring is computed. A question that it
does not answer in time is asked by nobody else until it answers again.
"""

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from kvpool_agent.directory.locate import Holders
from kvpool_agent.peer.connection import PeerError
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.store.external import blocks
from kvpool_agent.store.external.objects import SLOW, Objects, StoreError
from kvpool_agent.store.external.tier import ExternalTier
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of
from kvpool_contract.external import STORE

log = logging.getLogger("kvpool.external")

ASK_SECONDS = 0.5
MAX_ASKED = 1024  # blocks of one request
LISTED_AT_A_TIME = 64  # blocks of a hot list: what is not asked for by the end of the time is not warmed
READ_AHEAD = 4  # spans of 4 MiB
STORE_UNREACHABLE = "store_unreachable"

Land = Callable[[int, bytes, int, Callable[[memoryview], None]], None]


class ExternalSource:
    """Any thread may call. Without a tier it holds nothing."""

    def __init__(self, tier: ExternalTier | None) -> None:
        self._tier = tier

    def among(
        self,
        slab: Slab,
        chains: Sequence[Sequence[bytes]],
        lacks: Sequence[Sequence[bool]],
        near: Sequence[Sequence[bool]],
        found: Holders,
        deadline: float,
    ) -> Holders:
        """The holders of a request's blocks, and the store of those that nobody else holds; another reason for the rest
        where it could not be asked. near: what lies here. deadline: on the monotonic clock."""
        tier = self._tier
        if tier is None or tier.lacks_key(slab):
            return found
        # in the order of the chains: what lies behind a gap in all of them is of no use
        asked = sorted(
            (i, group)
            for group, (lack, own, members) in enumerate(zip(lacks, near, found.held, strict=True))
            for i in range(len(lack))
            if lack[i] and not own[i] and not any(row[i] for row in members.values())
        )[:MAX_ASKED]
        if not asked:
            return found
        names = [tier.name_of(slab, chains[group][i]) for i, group in asked]
        try:
            until = min(deadline, time.monotonic() + ASK_SECONDS)
            held = tier.access.call(lambda objects: objects.held(names), until)
        except StoreError as error:
            if error.word == SLOW and time.monotonic() < deadline:
                tier.access.failed(error)
            log.debug("the external store was not asked: %s", error)
            return replace(found, reason=STORE_UNREACHABLE if found.reason == "never_published" else found.reason)
        rows = [[False] * len(chain) for chain in chains]
        for (i, group), lies in zip(asked, held, strict=True):
            rows[group][i] = lies
        also = [{STORE: row} if any(row) else {} for row in rows]
        return replace(found, held=[{**members, **store} for members, store in zip(found.held, also, strict=True)])

    def fetch(
        self, slab: Slab, keys: Sequence[bytes], deadline: float, land: Land, own: Callable[[bytes], None]
    ) -> bool:
        """As Dialer.fetch. `own(key)` is called before a block lands that this member has computed itself. Raises
        PeerError."""
        tier = self._tier
        assert tier is not None
        sealed, seals = slab.space.keyed, tier.key_of(slab)
        spans = blocks.spans(slab.slot_bytes, sealed=sealed)
        names = [tier.name_of(slab, key) for key in keys]
        coming = _Ahead(tier, [(name, span) for name in names for span in spans], deadline)
        try:
            for index, (key, name) in enumerate(zip(keys, names, strict=True)):
                first = coming.take()
                if not first:
                    tier.is_gone(slab, key)
                    for _ in spans[1:]:
                        coming.take()
                    continue
                try:
                    reader = blocks.Reader(name, first, seals, sealed=sealed)
                    start = reader.of(slab.fingerprint, slab.slot_bytes)
                    if start.writer == tier.writer:
                        own(key)
                    fill = _filling(reader, key, spans, first, coming)
                    land(index, start.tag, start.block_bytes, fill)
                except blocks.Damaged as error:
                    tier.is_gone(slab, key)
                    tier.damaged(name, str(error))
                    raise PeerError(f"an object of the external store: {error}") from None
                tier.is_there(slab, key, renewed=False)
        except StoreError as error:
            raise PeerError(str(error)) from None
        finally:
            coming.close()
        return False

    def hot(self, slab: Slab, seconds: float) -> list[HotBlock]:
        """The hot list that the pool has left there, of blocks that still lie there; empty where it does not say."""
        tier, until = self._tier, time.monotonic() + seconds
        if tier is None or tier.lacks_key(slab):
            return []
        try:
            tier.access.settle(until)
            listed = tier.read_list(slab, until)
        except StoreError as error:
            log.info("no hot list from the external store: %s", error)
            return []
        found: list[HotBlock] = []
        for begin in range(0, len(listed), LISTED_AT_A_TIME):
            part = listed[begin : begin + LISTED_AT_A_TIME]
            try:
                held = tier.access.call(partial(_held, [tier.name_of(slab, block.key) for block in part]), until)
            except StoreError as error:
                log.info("of the external store's hot list %d blocks were asked for: %s", begin, error)
                break
            found += [block for block, lies in zip(part, held, strict=True) if lies]
        return found


class _Ahead:
    """Spans of objects in the order in which they are taken, some of them asked for before their turn."""

    def __init__(self, tier: ExternalTier, spans: Iterable[tuple[str, blocks.Span]], deadline: float) -> None:
        self._access, self._deadline = tier.access, deadline
        self._left = iter(spans)
        self._asked: deque[Future[bytes]] = deque()

    def take(self) -> bytes:
        """The next span's bytes. Raises StoreError, also where they are not there by the deadline."""
        for name, span in itertools.islice(self._left, READ_AHEAD - len(self._asked)):
            self._asked.append(self._access.begin(partial(_read, name, span)))
        return self._access.wait(self._asked.popleft(), self._deadline)

    def close(self) -> None:
        for future in self._asked:
            future.cancel()


def _held(names: Sequence[str], objects: Objects) -> list[bool]:
    return objects.held(names)


def _read(name: str, span: blocks.Span, objects: Objects) -> bytes:
    return objects.read(name, span.begin, span.length)


def _filling(
    reader: blocks.Reader, key: bytes, spans: Sequence[blocks.Span], first: bytes, coming: _Ahead
) -> Callable[[memoryview], None]:
    """What fills a view with the block of an object whose first span has come."""

    def fill(view: memoryview) -> None:
        for span in spans:
            reader.put(span, coming.take() if span.begin else first, view)
        if tag_of(key, view) != reader.start.tag:
            raise blocks.Damaged("its bytes don't match their tag")

    return fill
