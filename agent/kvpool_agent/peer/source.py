"""What a member answers others with, as the answering side of the peer protocol sees it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import Connection
from kvpool_agent.peer.lend import Lot
from kvpool_agent.peer.lending import End, Joined
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.store.heads import Told


class Source(Protocol):
    """What a member answers with."""

    pool: str

    def welcome(self, version: int) -> frames.Welcome: ...

    def holds(self, fingerprint: bytes, keys: Sequence[bytes]) -> Sequence[int]:
        """For each key the byte of frames.Located."""
        ...

    def description(self) -> bytes:
        """The packed fields of the format."""
        ...

    def hottest(self, fingerprint: bytes, limit: int) -> list[HotBlock]: ...

    def heads(self, fingerprint: bytes, since: int, seconds: float) -> Told:
        """The names of first blocks that are held, as they have changed since a number; waited for so long."""
        ...

    def blocks(
        self, fingerprint: bytes, keys: Sequence[bytes], purpose: str
    ) -> AbstractContextManager[Iterator[tuple[int, bytes, memoryview]]]:
        """(index, tag, bytes) of each block that is held, in order, readable for `read_seconds` of its bytes. Raises
        PeerBusy where other readers keep all that may be kept at a time."""
        ...

    def lots(self, fingerprint: bytes, keys: Sequence[bytes], purpose: str) -> AbstractContextManager[Iterator[Lot]]:
        """As blocks, for an asker that reads them by RDMA; a lot stays until the next one is asked for."""
        ...

    def taken(self, fingerprint: bytes, purpose: str, blocks: int) -> None:
        """An asker says that it has read so many blocks."""
        ...

    def join(self, connection: Connection, fingerprint: bytes, other: End) -> Joined:
        """A queue pair for the asker at this connection. Raises RdmaError."""
        ...


class Directory(Protocol):
    """What a member answers with as a home. A holder is its UID and incarnation, as its handshake said."""

    def renew(self, holder: tuple[str, str]) -> frames.Renewed: ...

    def announce(
        self,
        holder: tuple[str, str],
        groups: Mapping[bytes, Sequence[bytes]],
        withdrawn: Sequence[bytes],
        *,
        fresh: bool,
    ) -> int:
        """The number of the holder's lease."""
        ...

    def where(self, keys: Sequence[bytes]) -> list[tuple[tuple[str, str], list[bool]]]: ...


class Taker(Protocol):
    """Who takes what a member has offered."""

    def take(
        self, giver: tuple[str, str], slab: bytes, blocks: Sequence[HotBlock], seconds: float, *, copy: bool
    ) -> list[bool]:
        """For each block, hottest first, whether it is held here after what is wanted of them was fetched. giver: UID
        and incarnation. copy: whether it keeps them, and does not leave."""
        ...
