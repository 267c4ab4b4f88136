"""A block as an object of the external store: its name, its bytes, and how these are read again. No I/O.

The name is a hash of pool, slab and block key, under the store's prefix: it tells nobody a block key, and whose it is
only to those who know both. Start, 96 bytes: magic (8), version (4), flags (4), bytes of the block (8), format
fingerprint (16), parent's key or zeros (16), tag (16), who wrote it (16), checksum (8), xxh3-64 over all before it.
Then the block. Little-endian.

Where the cache namespace has a key all of it is sealed, as files of the disk tier are: the seal's header (33), part 0,
the start, then the block in pieces of 256 KiB less 16, numbered from 1 on, the last one marked as such. Every part is
bound to the object's name, so that none opens in place of another.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import xxhash

from kvpool_agent.store.sealing import HEADER_BYTES, TAG_BYTES, FileKey, Opener, Seal, Sealer, SealError

MAGIC, VERSION = b"kvpBlock", 1
SEALED_PIECE_BYTES = 256 << 10
PIECE_BYTES = SEALED_PIECE_BYTES - TAG_BYTES
PIECES_AT_A_TIME = 16
NAME_BYTES = WRITER_BYTES = 16
_HAS_PARENT = 1
_START = struct.Struct("<8sIIQ16s16s16s16s")
_CHECKSUM = struct.Struct("<Q")
START_BYTES = _START.size + _CHECKSUM.size
SEALED_START_BYTES = HEADER_BYTES + START_BYTES + TAG_BYTES


class Damaged(Exception):  # noqa: N818 - of one object, not of the store
    """An object is not what was written, or none that this agent may read; nothing of it is used."""


@dataclass(frozen=True)
class Start:
    """What an object says of its block. `writer`: of the member that computed it, see `writer_of`."""

    block_bytes: int
    fingerprint: bytes
    parent: bytes
    tag: bytes
    writer: bytes


@dataclass(frozen=True)
class Span:
    """Bytes [begin, begin + length) of an object: of its start, where it is the first one, and of a run of pieces from
    `piece` on."""

    begin: int
    length: int
    piece: int


def name_of(prefix: str, pool: str, slab: bytes, key: bytes) -> str:
    """The object of a block: the same for all members, and for nothing else."""
    digest = hashlib.blake2b(slab + key, digest_size=NAME_BYTES, person=b"kvpool object")
    digest.update(pool.encode())
    return prefix + digest.hexdigest()


def writer_of(member: str) -> bytes:
    """How an object names the member that has computed its block."""
    return hashlib.blake2b(member.encode(), digest_size=WRITER_BYTES, person=b"kvpool writer").digest()


def encode(name: str, start: Start, block: memoryview, key: FileKey | None) -> bytes:
    """The whole object; sealed where there is a key."""
    body = _START.pack(
        MAGIC, VERSION, _HAS_PARENT * bool(start.parent), start.block_bytes, start.fingerprint, start.parent,
        start.tag, start.writer,
    )  # fmt: skip
    head = body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))
    if key is None:
        return b"".join((head, block))
    sealer, about = Sealer(key), name.encode()
    parts = [sealer.opened_by.header, sealer.seal(head, about)]
    for begin in range(0, len(block), PIECE_BYTES):
        last = begin + PIECE_BYTES >= len(block)
        parts.append(sealer.seal(block[begin : begin + PIECE_BYTES], about, last=last))
    return b"".join(parts)


def spans(block_bytes: int, *, sealed: bool) -> list[Span]:
    """How an object is read: one span after the other, each of 4 MiB at most beside the start."""
    first, piece = (SEALED_START_BYTES, SEALED_PIECE_BYTES) if sealed else (START_BYTES, PIECE_BYTES)
    pieces = -(-block_bytes // PIECE_BYTES)
    whole = first + block_bytes + (pieces * TAG_BYTES if sealed else 0)
    ends = [min(whole, first + n * piece) for n in range(PIECES_AT_A_TIME, pieces, PIECES_AT_A_TIME)] + [whole]
    begins = [0, *ends[:-1]]
    return [
        Span(begin, end - begin, i * PIECES_AT_A_TIME) for i, (begin, end) in enumerate(zip(begins, ends, strict=True))
    ]


class Reader:
    """Reads one object, its spans in their order. `start`: what the first one says."""

    def __init__(self, name: str, first: bytes, keys: Sequence[FileKey], *, sealed: bool) -> None:
        """keys: of which one opens it, where it is sealed. Raises Damaged."""
        self._about = name.encode()
        self._opener: Opener | None = None
        if sealed:
            head = self._opened(first, keys)
            self._rest = memoryview(first)[SEALED_START_BYTES:]
        else:
            head, self._rest = first[:START_BYTES], memoryview(first)[START_BYTES:]
        self.start = _decoded(head)

    def of(self, fingerprint: bytes, block_bytes: int) -> Start:
        """What it says of its block. Raises Damaged where that is of another format."""
        if (self.start.fingerprint, self.start.block_bytes) != (fingerprint, block_bytes):
            raise Damaged("it is of another format")
        return self.start

    def _opened(self, first: bytes, keys: Iterable[FileKey]) -> bytes:
        for key in keys:
            try:
                self._opener = Opener(Seal(key, first[:HEADER_BYTES]))
                return self._opener.open(first[HEADER_BYTES:SEALED_START_BYTES], 0, self._about)
            except SealError:
                continue
        raise Damaged("no key that is in force opens it")

    def put(self, span: Span, data: bytes, view: memoryview) -> None:
        """Fills the part of the block's view that lies in the span. Raises Damaged."""
        if len(data) != span.length:
            raise Damaged("it is cut")
        at = span.piece * PIECE_BYTES
        rest = memoryview(data) if span.begin else self._rest
        if self._opener is None:
            view[at : at + len(rest)] = rest
            return
        for i, begin in enumerate(range(0, len(rest), SEALED_PIECE_BYTES)):
            sealed = rest[begin : begin + SEALED_PIECE_BYTES]
            end = at + len(sealed) - TAG_BYTES
            try:
                view[at:end] = self._opener.open(sealed, span.piece + i + 1, self._about, last=end == len(view))
            except (SealError, ValueError) as error:
                raise Damaged(str(error)) from None
            at = end


def _decoded(head: bytes) -> Start:
    if len(head) != START_BYTES:
        raise Damaged("it is cut")
    body = head[: _START.size]
    magic, version, flags, size, fingerprint, parent, tag, writer = _START.unpack(body)
    if (magic, version) != (MAGIC, VERSION) or _CHECKSUM.unpack_from(head, _START.size) != (
        xxhash.xxh3_64_intdigest(body),
    ):
        raise Damaged("its start does not check, or is another version's")
    return Start(size, fingerprint, parent if flags & _HAS_PARENT else b"", tag, writer)
