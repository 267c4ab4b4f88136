"""The format of an extent's file: pinned by a golden file, and nothing that is not one passes for one."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvpool_agent.store.disk import sealed
from kvpool_agent.store.disk.faults import Damaged
from kvpool_agent.store.disk.header import MAX_BLOCKS, PAGE, Entry, ExtentHeader, decode, encode, length_of
from kvpool_agent.store.sealing import FileKey
from kvpool_contract.tenants import slab_id

GOLDEN = Path(__file__).parent / "vectors" / "extent_header.hex"
HEADER = ExtentHeader(
    fingerprint=bytes(range(16)),
    block_bytes=5000,
    entries=(Entry(b"k" * 16, b"", b"t" * 16), Entry(b"l" * 16, b"k" * 16, b"u" * 16)),
    namespace=b"n" * 16,
)

KEY = FileKey("chat", "acme", b"k" * 32)
SEALED = replace(HEADER, namespace=slab_id(HEADER.fingerprint, "acme"))
SEALED_GOLDEN = GOLDEN.with_name("sealed_extent.hex")


def sealed_file(folder: Path) -> bytes:
    file = folder / "extent"
    with file.open("wb") as opened:
        blocks = [memoryview(bytes([i]) * SEALED.block_bytes) for i in range(2)]
        sealed.write(opened.fileno(), SEALED, KEY, blocks, bypasses=False)
    return file.read_bytes()


def test_the_golden_file_is_read_and_written_as_ever() -> None:
    data = bytes.fromhex(GOLDEN.read_text())
    assert encode(HEADER) == data
    assert decode(data) == HEADER


def test_a_file_is_its_header_and_its_blocks_each_on_whole_pages() -> None:
    assert HEADER.header_bytes == PAGE
    assert [HEADER.offset(0), HEADER.offset(1), HEADER.file_bytes] == [PAGE, 3 * PAGE, 5 * PAGE]


def test_the_largest_header_is_read_again() -> None:
    header = ExtentHeader(bytes(16), PAGE, tuple(Entry(i.to_bytes(16), b"", bytes(16)) for i in range(MAX_BLOCKS)))
    assert decode(encode(header)) == header


def test_every_flipped_bit_of_head_and_entries_is_found() -> None:
    data = encode(HEADER)
    meant = 64 + 2 * 56 + 8
    for place in range(meant):
        for bit in range(8):
            broken = bytearray(data)
            broken[place] ^= 1 << bit
            assert decode(bytes(broken)) is None, (place, bit)


@pytest.mark.parametrize("cut", [0, 1, 63, 64, 100, PAGE - 1])
def test_a_header_that_was_cut_is_none(cut: int) -> None:
    assert decode(encode(HEADER)[:cut]) is None


def test_another_version_is_none() -> None:
    data = bytearray(encode(HEADER))
    data[8] = 2
    assert length_of(bytes(data)) == 0
    assert decode(bytes(data)) is None


def test_the_golden_sealed_file_is_read_as_ever(tmp_path: Path) -> None:
    """Each has a salt of its own, so none is written twice."""
    data = bytes.fromhex(SEALED_GOLDEN.read_text())
    header = sealed.decode(data[: sealed.length_of(data)], [replace(KEY, key=b"o" * 32), KEY])
    assert replace(header, seal=None) == SEALED
    assert header.file_bytes == len(data) == len(sealed_file(tmp_path)) == 2 * PAGE + 2 * 2 * PAGE
    blocks = [bytearray(SEALED.block_bytes) for _ in range(2)]
    file = tmp_path / "golden"
    file.write_bytes(data)
    with file.open("rb") as opened:
        sealed.read(opened.fileno(), header, [(i, memoryview(block)) for i, block in enumerate(blocks)])
    assert [set(block) for block in blocks] == [{0}, {1}]


def test_every_flipped_bit_of_a_sealed_header_is_found(tmp_path: Path) -> None:
    data = sealed_file(tmp_path)[: 2 * PAGE]
    meant = sealed.START_BYTES + PAGE + 16
    for place in [*range(sealed.START_BYTES), *range(sealed.START_BYTES, meant, 97), meant - 1]:
        for bit in range(8):
            broken = bytearray(data)
            broken[place] ^= 1 << bit
            with pytest.raises(Damaged):
                sealed.decode(bytes(broken), [KEY])


@pytest.mark.parametrize("cut", [0, 1, 63, 64, PAGE, 2 * PAGE - 1])
def test_a_sealed_header_that_was_cut_is_none(tmp_path: Path, cut: int) -> None:
    with pytest.raises(Damaged):
        sealed.decode(sealed_file(tmp_path)[:cut], [KEY])
