"""What an extent's file says about itself: a pure codec, so that a scan needs the headers alone.

Head, 64 bytes: magic (8), version (4), bytes of the whole header (4), bytes of a block (8), blocks (4), zeros (4),
format fingerprint (16), cache namespace's opaque id (16; zeros: the default one). Then an entry for each block, 56
bytes: flags (1), zeros (7), block key (16), parent's key or zeros (16), tag (16). Then a checksum (8), xxh3-64 over all
before it, and zeros up to a multiple of 4096. Little-endian. A block key commits to the KV group, which so needs no
field of its own. The blocks follow, each padded with zeros to a multiple of 4096, so that a volume that takes direct
I/O gets it. What does not check, or has another version, is nobody's extent and never an error. A file may be sealed:
see kvpool_agent.store.disk.sealed.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from kvpool_agent.store.sealing import TAG_BYTES, Seal

MAGIC = b"kvpExtnt"
VERSION = 1
PAGE = 4096
MAX_HEADER_BYTES = 1 << 20
SEALED_PIECE_BYTES = 256 << 10  # few enough to lie in a processor's cache
PIECE_BYTES = SEALED_PIECE_BYTES - TAG_BYTES
DEFAULT_NAMESPACE = bytes(16)
_HAS_PARENT = 1
_HEAD = struct.Struct("<8sIIQII16s16s")
_ENTRY = struct.Struct("<B7x16s16s16s")
_CHECKSUM = struct.Struct("<Q")
MAX_BLOCKS = (MAX_HEADER_BYTES - _HEAD.size - _CHECKSUM.size) // _ENTRY.size


@dataclass(frozen=True)
class Entry:
    """A block in its extent. `parent` is empty where it begins a prompt."""

    key: bytes
    parent: bytes
    tag: bytes


@dataclass(frozen=True)
class ExtentHeader:
    """Blocks of one format and cache namespace, `block_bytes` each. `seal`: what the file is sealed under, None for one
    in clear."""

    fingerprint: bytes
    block_bytes: int
    entries: Sequence[Entry]
    namespace: bytes = DEFAULT_NAMESPACE
    seal: Seal | None = None

    @property
    def header_bytes(self) -> int:
        return _encoded_bytes(len(self.entries)) + PAGE * (self.seal is not None)

    @property
    def stride(self) -> int:
        """Bytes from the beginning of one block to that of the next one."""
        if self.seal is None:
            return padded(self.block_bytes)
        pieces, rest = divmod(self.block_bytes, PIECE_BYTES)
        return pieces * SEALED_PIECE_BYTES + (padded(rest + TAG_BYTES) if rest else 0)

    @property
    def file_bytes(self) -> int:
        """Of the whole file: one of another length is not whole."""
        return self.offset(len(self.entries))

    def offset(self, position: int) -> int:
        """Where the block at this position begins."""
        return self.header_bytes + position * self.stride


def _encoded_bytes(blocks: int) -> int:
    return padded(_HEAD.size + blocks * _ENTRY.size + _CHECKSUM.size)


def padded(size: int) -> int:
    return size + -size % PAGE


def encode(header: ExtentHeader) -> bytes:
    """The header in clear, whether its file is sealed or not. At most MAX_BLOCKS blocks."""
    length, count = _encoded_bytes(len(header.entries)), len(header.entries)
    head = _HEAD.pack(
        MAGIC, VERSION, length, header.block_bytes, count, 0, header.fingerprint, header.namespace
    )  # fmt: skip
    body = head + b"".join(_ENTRY.pack(_HAS_PARENT * bool(e.parent), e.key, e.parent, e.tag) for e in header.entries)
    return (body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))).ljust(length, b"\0")


def length_of(start: bytes) -> int:
    """Bytes of the whole header that begins so; 0 where it is none that this version reads."""
    if len(start) < _HEAD.size:
        return 0
    magic, version, length, *_ = _HEAD.unpack_from(start)
    return length if magic == MAGIC and version == VERSION and PAGE <= length <= MAX_HEADER_BYTES else 0


def decode(data: bytes) -> ExtentHeader | None:
    """The header; None where it is damaged or another version's."""
    if not (length := length_of(data)) or len(data) != length:
        return None
    _, _, _, block_bytes, count, _, fingerprint, namespace = _HEAD.unpack_from(data)
    end = _HEAD.size + count * _ENTRY.size
    if not block_bytes or not count or count > MAX_BLOCKS or padded(end + _CHECKSUM.size) != length:
        return None
    if _CHECKSUM.unpack_from(data, end) != (xxhash.xxh3_64_intdigest(data[:end]),):
        return None
    entries = tuple(
        Entry(key, parent if flags & _HAS_PARENT else b"", tag)
        for flags, key, parent, tag in _ENTRY.iter_unpack(data[_HEAD.size : end])
    )
    return ExtentHeader(fingerprint, block_bytes, entries, namespace)
