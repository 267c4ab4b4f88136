"""An extent's file that is sealed: its header and its blocks, in parts that open under one key alone.

Start, 64 bytes: magic (8), version (4), bytes of the whole header (4), the seal's header (33), zeros. Then part 0, the
header as it is written in clear elsewhere, and zeros up to a multiple of 4096. Each block is cut into pieces of 256 KiB
less 16, sealed they are whole pages; the last piece of a block may be shorter, and zeros follow it up to a multiple of
4096. Pieces are numbered through the file from 1 on, and the last one says that it is the last. Start, number and place
are thereby bound to what was written; that nothing else is in the header tells nobody more than the file's length does.

Pieces go through a buffer of whole pages, so that a volume which takes direct I/O gets it: the sealed bytes exist
nowhere else.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from kvpool_agent.store.disk import header as codec
from kvpool_agent.store.disk import moves
from kvpool_agent.store.disk.faults import Damaged, Unopened
from kvpool_agent.store.disk.header import PAGE, PIECE_BYTES, SEALED_PIECE_BYTES, ExtentHeader, padded
from kvpool_agent.store.sealing import HEADER_BYTES, TAG_BYTES, FileKey, Opener, Seal, Sealer, SealError
from kvpool_contract.tenants import slab_id

MAGIC = b"kvpSeald"
VERSION = 1
BUFFER_BYTES = 4 << 20
_START = struct.Struct("<8sII")
START_BYTES = 64


def length_of(start: bytes) -> int:
    """Bytes of the whole header that begins so; 0 where it is none that this version reads."""
    if len(start) < START_BYTES:
        return 0
    magic, version, length = _START.unpack_from(start)
    return length if magic == MAGIC and version == VERSION and PAGE <= length <= codec.MAX_HEADER_BYTES + PAGE else 0


def is_sealed(start: bytes) -> bool:
    return start.startswith(MAGIC)


def decode(data: bytes, keys: Iterable[FileKey]) -> ExtentHeader:
    """The header, opened under one of the keys. Raises Unopened, and Damaged."""
    length = length_of(data)
    if not length or len(data) != length:
        raise Damaged("its header is cut, or another version's")
    start = data[:START_BYTES]
    part = data[START_BYTES : length - PAGE + START_BYTES + TAG_BYTES]
    for key in keys:
        seal = Seal(key, start[_START.size : _START.size + HEADER_BYTES])
        try:
            found = codec.decode(Opener(seal).open(part, 0, start))
        except SealError:
            continue
        if found is None or found.namespace != slab_id(found.fingerprint, key.cache_namespace):
            raise Damaged("its header does not check, or is another version's")
        return replace(found, seal=seal)
    raise Unopened("no key that is in force opens it")


def write(descriptor: int, header: ExtentHeader, key: FileKey, blocks: Sequence[memoryview], *, bypasses: bool) -> Seal:
    """Writes the whole file. Returns what opens it: each try has a salt of its own."""
    sealer = Sealer(key)
    sealed = replace(header, seal=sealer.opened_by)
    start = _START.pack(MAGIC, VERSION, sealed.header_bytes) + sealer.opened_by.header
    start = start.ljust(START_BYTES, b"\0")
    writing = moves.Writing(descriptor, bypasses=bypasses)
    view = moves.pages(BUFFER_BYTES)
    filled = _put(view, 0, start + sealer.seal(codec.encode(header), start))
    for number, block in enumerate(blocks, 1):
        pieces = list(_pieces(len(block)))
        for piece, (begin, end) in enumerate(pieces, 1):
            if filled + SEALED_PIECE_BYTES > BUFFER_BYTES:
                writing.put([view[:filled]])
                filled = 0
            last = number == len(blocks) and piece == len(pieces)
            filled = _put(view, filled, sealer.seal(block[begin:end], last=last))
    writing.put([view[:filled]])
    return sealer.opened_by


def read(descriptor: int, header: ExtentHeader, places: Iterable[tuple[int, memoryview]]) -> None:
    """Fills each view with the block at its position. Raises Damaged where the file does not hold it."""
    assert header.seal is not None
    opener = Opener(header.seal)
    view = moves.pages(min(BUFFER_BYTES, padded(header.stride)))
    for position, block in places:
        offset = header.offset(position)
        pieces = list(_pieces(len(block)))
        first = 1 + position * len(pieces)
        at_a_time = len(view) // SEALED_PIECE_BYTES or 1
        for i in range(0, len(pieces), at_a_time):
            part = pieces[i : i + at_a_time]
            size = sum(padded(end - begin + TAG_BYTES) for begin, end in part)
            moves.read(descriptor, [view[:size]], offset)
            offset += size
            for place, (begin, end) in enumerate(part):
                at = place * SEALED_PIECE_BYTES
                last = position + 1 == len(header.entries) and i + place + 1 == len(pieces)
                try:
                    block[begin:end] = opener.open(
                        view[at : at + end - begin + TAG_BYTES], first + i + place, last=last
                    )
                except SealError as error:
                    raise Damaged(str(error)) from None


def _pieces(size: int) -> Iterator[tuple[int, int]]:
    """Where each piece of a block begins and ends."""
    return ((begin, min(begin + PIECE_BYTES, size)) for begin in range(0, size, PIECE_BYTES))


def _put(view: memoryview, at: int, data: bytes) -> int:
    """Puts the bytes and zeros up to a whole page there; where that ends."""
    end = at + padded(len(data))
    view[at : at + len(data)] = data
    view[at + len(data) : end] = bytes(end - at - len(data))
    return end
