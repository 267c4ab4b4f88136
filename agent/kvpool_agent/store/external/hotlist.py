"""The hot list that lies in the store beside the blocks: what a pool that has been away begins with. No I/O.

There is one for each slab. Members write it over each other: what one finds there it keeps, aged, so a list lost in a
race comes again with its member's next one. Heats are not added up, since the same member's own would be added every
time: a block is as hot as the member has it that has it hottest.

Start: magic (8), version (4), blocks (4), seconds since 1970 (8). Then for each block its key (16), its parent's key or
zeros (16), its depth and whether it has a parent (4), heat (8). Then a checksum (8). Sealed in one part, where the
cache namespace has a key.
"""

import struct
from collections.abc import Iterable, Sequence

import xxhash

from kvpool_agent.policy.heat import HALF_LIFE_SECONDS, HotBlock
from kvpool_agent.store.external.blocks import Damaged
from kvpool_agent.store.sealing import HEADER_BYTES, FileKey, Opener, Seal, Sealer, SealError

MAGIC, VERSION = b"kvpHotLi", 1
MAX_BLOCKS = 4096
LEAST_HEAT = 0.01  # below it a block of a list that was found is forgotten
LIST_KEY = b"hot list"  # in place of a block key
_START = struct.Struct("<8sIId")
_ENTRY = struct.Struct("<16s16sId")
_CHECKSUM = struct.Struct("<Q")
_HAS_PARENT, _DEPTH = 1 << 31, (1 << 31) - 1
MAX_BYTES = HEADER_BYTES + 16 + _START.size + MAX_BLOCKS * _ENTRY.size + _CHECKSUM.size


def merged(found: Sequence[HotBlock], own: Iterable[HotBlock]) -> list[HotBlock]:
    """Both lists as one, the hottest first and parents before their children, cut to MAX_BLOCKS."""
    blocks = {block.key: block for block in found if block.heat >= LEAST_HEAT}
    for block in own:
        known = blocks.get(block.key)
        if known is None or known.heat < block.heat:
            blocks[block.key] = block
    return sorted(blocks.values(), key=lambda block: (-block.heat, block.depth, block.key))[:MAX_BLOCKS]


def encode(name: str, blocks: Sequence[HotBlock], at: float, key: FileKey | None) -> bytes:
    """at: seconds since 1970."""
    body = _START.pack(MAGIC, VERSION, len(blocks), at) + b"".join(
        _ENTRY.pack(b.key, b.parent, min(b.depth, _DEPTH) | _HAS_PARENT * bool(b.parent), b.heat) for b in blocks
    )
    clear = body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))
    if key is None:
        return clear
    sealer = Sealer(key)
    return sealer.opened_by.header + sealer.seal(clear, name.encode(), last=True)


def decode(name: str, data: bytes, now: float, keys: Sequence[FileKey], *, sealed: bool) -> list[HotBlock]:
    """The blocks with their heats as of `now`. Raises Damaged."""
    clear = _opened(name, data, keys) if sealed else data
    if len(clear) < _START.size + _CHECKSUM.size:
        raise Damaged("it is cut")
    magic, version, count, at = _START.unpack_from(clear)
    end = _START.size + count * _ENTRY.size
    if (magic, version, len(clear)) != (MAGIC, VERSION, end + _CHECKSUM.size) or count > MAX_BLOCKS:
        raise Damaged("it is another version's, or cut")
    if _CHECKSUM.unpack_from(clear, end) != (xxhash.xxh3_64_intdigest(clear[:end]),):
        raise Damaged("it does not check")
    aged = 2.0 ** (-max(0.0, now - at) / HALF_LIFE_SECONDS)
    return [
        HotBlock(key, parent if place & _HAS_PARENT else b"", place & _DEPTH, heat * aged)
        for key, parent, place, heat in _ENTRY.iter_unpack(clear[_START.size : end])
    ]


def _opened(name: str, data: bytes, keys: Sequence[FileKey]) -> bytes:
    for key in keys:
        try:
            return Opener(Seal(key, data[:HEADER_BYTES])).open(data[HEADER_BYTES:], 0, name.encode(), last=True)
        except SealError:
            continue
    raise Damaged("no key that is in force opens it")
