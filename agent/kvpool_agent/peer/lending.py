"""Messages for blocks that the asker reads out of the other side's memory itself, by RDMA; from version 6 on.

Join makes a queue pair of each side's and ties it to the connection and to one slab: it ends with the connection, and
what the asker has proved on that one is all that it can read. Borrow is a Fetch of which the source sends names of
places instead of bytes: one Lent for each lot of blocks, which stay there for the seconds that it names, and the next
one after Returned. All of it travels as the connection does, inside TLS where that is on; the blocks' bytes do not.
"""

import struct
from collections.abc import Sequence
from typing import Annotated

import msgspec

from kvpool_agent.peer.message import Message

MAX_LENT = 4096  # blocks at a time
TAG_BYTES = 16
LEAST_MTU, MOST_MTU = 256, 4096
_PLACE = struct.Struct(f"!Q{TAG_BYTES}s")
_NOWHERE = (1 << 64) - 1
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_Address = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class End(msgspec.Struct, frozen=True):
    """One side's queue pair: its number, the number of its first packet, its port's GID, its port's MTU in bytes, and
    how many reads it takes at a time."""

    queue_pair: Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)]
    packet: Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)]
    gid: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    mtu: Annotated[int, msgspec.Meta(ge=LEAST_MTU, le=MOST_MTU)]
    reads: Annotated[int, msgspec.Meta(ge=1, le=255)]


class Join(Message, tag="join"):
    """Let my queue pair read from the slab with this id."""

    slab: bytes
    end: End


class Joined(Message, tag="joined"):
    """The answerer's queue pair, and where the slab lies in its memory: address, bytes, key."""

    end: End
    address: _Address
    length: _Address
    key: _Number


class Borrow(Message, tag="borrow"):
    """As Fetch, for blocks that the asker reads itself. Tail: their keys."""

    format: bytes
    purpose: str
    seconds: float


class Lent(Message, tag="lent"):
    """Blocks of a Borrow, from index `first` on, stay where they are for so many seconds. Tail: place and tag of each
    (see pack_places)."""

    first: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    seconds: float


class Returned(Message, tag="returned"):
    """So many of the blocks that were lent last have been read, and they may go."""

    blocks: Annotated[int, msgspec.Meta(ge=0, le=MAX_LENT)]


def pack_places(places: Sequence[tuple[int, bytes] | None]) -> bytes:
    """For each block its offset in the slab and its tag; None for one that is not held."""
    return b"".join(_PLACE.pack(*(place or (_NOWHERE, b""))) for place in places)


def unpack_places(tail: bytes) -> list[tuple[int, bytes] | None]:
    """Raises ValueError."""
    if len(tail) % _PLACE.size or len(tail) > MAX_LENT * _PLACE.size:
        raise ValueError(f"{len(tail)} bytes are no list of at most {MAX_LENT} places")
    return [None if offset == _NOWHERE else (offset, tag) for offset, tag in _PLACE.iter_unpack(tail)]


MAX_PLACES = MAX_LENT * _PLACE.size  # bytes of a tail
