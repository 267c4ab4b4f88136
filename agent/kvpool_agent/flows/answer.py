"""Answering other members: what this agent holds, what is hot here, the blocks themselves; what it knows as a home."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from kvpool_agent.directory.entries import Entries
from kvpool_agent.directory.members import MemberView
from kvpool_agent.flows.probe import ProbeFlow
from kvpool_agent.flows.reading import Reading
from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import Connection
from kvpool_agent.peer.dial import Identity
from kvpool_agent.peer.lend import Lot
from kvpool_agent.peer.lending import End, Joined
from kvpool_agent.peer.rdma.transport import Rdma
from kvpool_agent.peer.rdma.words import RdmaError
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.store.heads import NOTHING, Told
from kvpool_agent.store.slab import Slab, Slabs
from kvpool_contract.prefixes import NEVER


class OwnBlocks:
    """This member as a source (peer.serve.Source). state: gives the agent's state. One whose engine has failed its
    probe holds nothing for others, and so does one whose publication is Never. proved: whether an engine has shown its
    format; a guess is no word for others to guess by, so the template is told only then."""

    def __init__(
        self,
        identity: Identity,
        slabs: Slabs,
        reading: Reading,
        state: Callable[[], str],
        probe: ProbeFlow,
        proved: Callable[[], bool] = lambda: True,
        rdma: Rdma | None = None,
        publication: str = "Always",
    ) -> None:
        self.pool = identity.pool
        self._identity = identity
        self._slabs = slabs
        self._reading = reading
        self._state = state
        self._probe = probe
        self._proved = proved
        self._rdma = rdma
        self._private = publication == NEVER

    @property
    def hidden(self) -> bool:
        """Whether others are told of nothing that is here."""
        return self._private or self._probe.withdrawn

    def _slab(self, fingerprint: bytes) -> Slab | None:
        return None if self.hidden else self._slabs.of(fingerprint)

    def welcome(self, version: int) -> frames.Welcome:
        slab = self._slabs.current
        return frames.Welcome(
            version,
            self._identity.member,
            self._identity.incarnation,
            self._state(),
            slab.fingerprint.hex() if slab is not None else "",
            len(slab.arena) if slab is not None and not self.hidden else 0,
            self._identity.template if self._proved() else "",
            slab.slot_bytes if slab is not None else 0,
        )

    def holds(self, fingerprint: bytes, keys: Sequence[bytes]) -> list[int]:
        slab = self._slab(fingerprint)
        if slab is None:
            return [0] * len(keys)
        states = zip(slab.arena.told(keys), slab.arena.made_room(keys, told=True), strict=True)
        return [frames.HELD if held else frames.MADE_ROOM if gone else 0 for held, gone in states]

    def description(self) -> bytes:
        slab = self._slabs.current
        return frames.pack_fields(slab.fields if slab is not None else None)

    def hottest(self, fingerprint: bytes, limit: int) -> list[HotBlock]:
        slab = self._slab(fingerprint)
        if slab is None:
            return []
        return slab.hottest(time.monotonic(), limit)

    def heads(self, fingerprint: bytes, since: int, seconds: float) -> Told:
        if self.hidden:  # nothing is held for others, for the rest of this life
            return Told(1, whole=True)
        slab = self._slabs.of(fingerprint)
        return slab.arena.told_heads.since(since, seconds) if slab is not None else NOTHING

    @contextmanager
    def blocks(
        self, fingerprint: bytes, keys: Sequence[bytes], purpose: str
    ) -> Iterator[Iterator[tuple[int, bytes, memoryview]]]:
        if purpose == "probe":  # of the format, whatever the cache namespaces
            current = self._slabs.current
            same = current is not None and current.fingerprint == fingerprint and not self._probe.withdrawn
            yield iter(self._probe.rows(current, keys) if same and current is not None else ())
            return
        slab = self._slab(fingerprint)
        if slab is None:
            yield iter(())
            return
        with self._reading.blocks(slab, keys, purpose) as found:
            yield found

    @contextmanager
    def lots(self, fingerprint: bytes, keys: Sequence[bytes], purpose: str) -> Iterator[Iterator[Lot]]:
        slab = self._slab(fingerprint)
        if slab is None or purpose == "probe":
            yield iter(())
            return
        with self._reading.lots(slab, keys, purpose) as found:
            yield found

    def taken(self, fingerprint: bytes, purpose: str, blocks: int) -> None:
        slab = self._slab(fingerprint)
        if slab is not None:
            self._reading.taken(slab, purpose, blocks)

    def join(self, connection: Connection, fingerprint: bytes, other: End) -> Joined:
        if self._rdma is None:
            raise RdmaError("rdma_off")
        return self._rdma.join(connection, self._slab(fingerprint), other)


class OwnDirectory:
    """This member as a home (peer.serve.Directory): what others have announced here, and what it holds itself."""

    def __init__(
        self, identity: Identity, slabs: Slabs, source: OwnBlocks, entries: Entries, members: MemberView
    ) -> None:
        self._own = identity.member, identity.incarnation
        self._slabs, self._source = slabs, source
        self._entries = entries
        self._members = members

    def renew(self, holder: tuple[str, str]) -> frames.Renewed:
        known = [
            (member.address, member.welcome.member)
            for member in self._members.all()
            if member.live and member.welcome is not None and member.welcome.member != holder[0]
            if max(len(member.address), len(member.welcome.member)) <= frames.MAX_NAME
        ]
        return frames.Renewed(self._entries.renew(holder), random.sample(known, min(frames.MAX_TOLD, len(known))))

    def announce(
        self,
        holder: tuple[str, str],
        groups: Mapping[bytes, Sequence[bytes]],
        withdrawn: Sequence[bytes],
        *,
        fresh: bool,
    ) -> int:
        return self._entries.announce(holder, groups, withdrawn, fresh=fresh)

    def where(self, keys: Sequence[bytes]) -> list[tuple[tuple[str, str], list[bool]]]:
        slab = self._slabs.current
        own = [state == frames.HELD for state in self._source.holds(slab.id, keys)] if slab is not None else []
        announced = self._entries.where(keys)
        return [(self._own, own), *announced[: frames.MAX_HOLDERS - 1]] if any(own) else announced
