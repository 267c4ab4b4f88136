"""What the arena's memory says about itself, so that a new worker finds its predecessor's blocks: a pure codec.

At the very end of the memory lies one arena header, before it the format's fields, before those a table with a
header for each slot; the slots begin at 0. So nothing has to be known to read it but the memory's size. Everything
carries a checksum: what does not check, or has another layout version, is nobody's block and never an error.

Arena header, 128 bytes: magic (8), layout version (4), length of the fields (4), slot bytes (8), slot count (8),
format fingerprint (16), checksum over these and the fields (8), zeros. Slot header, 64 bytes: state (1), flags (1),
zeros (2), slot (4), block key (16), parent's key or zeros (16), tag (16), checksum (8). Little-endian; checksums are
xxh3-64. The fields are JSON, padded with blanks to 64 bytes.
"""

import json
import struct
from dataclasses import dataclass
from typing import Any

import xxhash

from kvpool_contract.names import format_fingerprint

MAGIC = b"kvpArena"
LAYOUT_VERSION = 1
ARENA_HEADER_BYTES = 128
SLOT_HEADER_BYTES = 64
# far apart: no single flipped bit makes a free slot a filled one
FREE, FILLED = 0x00, 0xB7
_FOREIGN, _HAS_PARENT = 1, 2
_ARENA = struct.Struct("<8sIIQQ16s")
_SLOT = struct.Struct("<BBHI16s16s16s")
_CHECKSUM = struct.Struct("<Q")


@dataclass(frozen=True)
class ArenaHeader:
    """The format that the memory is cut for, and how."""

    fingerprint: bytes
    fields: dict[str, Any]
    slot_bytes: int
    slot_count: int


@dataclass(frozen=True)
class SlotHeader:
    """The block that a slot holds. `parent` is empty where it begins a prompt."""

    key: bytes
    parent: bytes
    tag: bytes
    foreign: bool


def encode_fields(fields: dict[str, Any]) -> bytes:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return text + b" " * (-len(text) % SLOT_HEADER_BYTES)


def slots_that_fit(size: int, slot_bytes: int, fields_length: int) -> int:
    """How many slots of `slot_bytes` memory of `size` bytes holds beside all headers."""
    return max(0, size - ARENA_HEADER_BYTES - fields_length) // (slot_bytes + SLOT_HEADER_BYTES)


def encode_arena(header: ArenaHeader) -> bytes:
    """The fields and the arena header: the last bytes of the memory. They begin a multiple of 64 before its end."""
    fields = encode_fields(header.fields)
    body = _ARENA.pack(
        MAGIC, LAYOUT_VERSION, len(fields), header.slot_bytes, header.slot_count, header.fingerprint
    )  # fmt: skip
    checksum = _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body + fields))
    return fields + (body + checksum).ljust(ARENA_HEADER_BYTES, b"\0")


def decode_arena(memory: memoryview) -> ArenaHeader | None:
    """The header at the end of the memory, None where there is none that this version reads and that is true."""
    if len(memory) < ARENA_HEADER_BYTES:
        return None
    at = len(memory) - ARENA_HEADER_BYTES
    body = bytes(memory[at : at + _ARENA.size])
    magic, version, length, slot_bytes, slot_count, fingerprint = _ARENA.unpack(body)
    if magic != MAGIC or version != LAYOUT_VERSION or length > at or not slot_bytes:
        return None
    encoded = bytes(memory[at - length : at])
    (checksum,) = _CHECKSUM.unpack_from(memory, at + _ARENA.size)
    if checksum != xxhash.xxh3_64_intdigest(body + encoded):
        return None
    if slot_count != slots_that_fit(len(memory), slot_bytes, length):  # the memory had another size then
        return None
    try:
        fields = json.loads(encoded)
        if not isinstance(fields, dict) or format_fingerprint(fields) != fingerprint:
            return None
    except (ValueError, RecursionError):
        return None
    return ArenaHeader(fingerprint, fields, slot_bytes, slot_count)


def slot_bytes_of(memory: memoryview) -> int:
    """Bytes of a slot as the header at the end of the memory says, which may not be true; 0 where there is none."""
    if len(memory) < ARENA_HEADER_BYTES:
        return 0
    magic, _, _, slot_bytes, _, _ = _ARENA.unpack_from(memory, len(memory) - ARENA_HEADER_BYTES)
    return int(slot_bytes) if magic == MAGIC and 0 < slot_bytes <= len(memory) else 0


def encode_slot(slot: int, header: SlotHeader) -> bytes:
    flags = _FOREIGN * header.foreign | _HAS_PARENT * bool(header.parent)
    body = _SLOT.pack(FILLED, flags, 0, slot, header.key, header.parent, header.tag)
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def decode_slot(slot: int, data: bytes) -> SlotHeader | None:
    """The header of a filled slot; None when it is not filled, not this slot's, or damaged."""
    body = data[: _SLOT.size]
    if data[0] != FILLED or _CHECKSUM.unpack_from(data, _SLOT.size) != (xxhash.xxh3_64_intdigest(body),):
        return None
    _, flags, _, number, key, parent, tag = _SLOT.unpack(body)
    if number != slot:
        return None
    return SlotHeader(key, parent if flags & _HAS_PARENT else b"", tag, bool(flags & _FOREIGN))
