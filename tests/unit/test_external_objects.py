"""Objects of the external store: what was written is read again and nothing else, in clear and sealed; the hot list."""

import random
import time

import pytest

from kvpool_agent.policy.heat import HALF_LIFE_SECONDS, HotBlock
from kvpool_agent.store.external import blocks, hotlist
from kvpool_agent.store.external.blocks import Damaged, Reader, Start
from kvpool_agent.store.sealing import FileKey
from kvpool_agent.store.tag import tag_of

KEY, OTHER = FileKey("chat", "acme", b"k" * 32), FileKey("chat", "acme", b"o" * 32)
NAME, BLOCK = "kvpool/ns/chat/00ff", b"b" * 16
either_way = pytest.mark.parametrize("key", [None, KEY], ids=["in clear", "sealed"])


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def written(size: int, key: FileKey | None, parent: bytes = b"p" * 16) -> tuple[Start, bytes]:
    data = memoryview(content(size))
    start = Start(size, b"f" * 16, parent, tag_of(BLOCK, data), blocks.writer_of("a"))
    return start, blocks.encode(NAME, start, data, key)


def read(data: bytes, size: int, *keys: FileKey, name: str = NAME) -> tuple[Start, bytes]:
    """As a store gives it, span by span."""
    view = memoryview(bytearray(size))
    spans = blocks.spans(size, sealed=bool(keys))
    parts = [data[span.begin : span.begin + span.length] for span in spans]
    reader = Reader(name, parts[0], keys, sealed=bool(keys))
    for span, part in zip(spans, parts, strict=True):
        reader.put(span, part, view)
    if tag_of(BLOCK, view) != reader.start.tag:
        raise Damaged("tag")
    return reader.start, bytes(view)


@either_way
@pytest.mark.parametrize(
    "size", [1, 4096, blocks.PIECE_BYTES, blocks.PIECE_BYTES + 1, 16 * blocks.PIECE_BYTES, (9 << 20) + 5]
)
def test_a_block_of_any_size_comes_back_in_spans_that_cover_its_object(size: int, key: FileKey | None) -> None:
    start, data = written(size, key)
    spans = blocks.spans(size, sealed=key is not None)
    assert sum(span.length for span in spans) == len(data)
    assert [span.begin for span in spans[1:]] == [span.begin + span.length for span in spans[:-1]]
    assert max(span.length for span in spans) <= (4 << 20) + blocks.SEALED_START_BYTES
    assert read(data, size, *filter(None, [key])) == (start, content(size))


@either_way
def test_every_flipped_byte_and_every_cut_is_found(key: FileKey | None) -> None:
    _, data = written(300, key)
    keys = list(filter(None, [key]))
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        with pytest.raises(Damaged):
            read(bytes(changed), 300, *keys)
    for cut in range(len(data)):
        with pytest.raises(Damaged):
            read(data[:cut], 300, *keys)


def test_one_without_parent_is_told_from_one_whose_parent_is_zeros() -> None:
    start, data = written(10, None, parent=b"")
    assert read(data, 10)[0].parent == start.parent == b""
    start, data = written(10, None, parent=bytes(16))
    assert read(data, 10)[0].parent == bytes(16)


def test_a_sealed_object_opens_under_its_key_and_name_alone() -> None:
    start, data = written(5000, KEY)
    assert read(data, 5000, OTHER, KEY)[0] == start  # of two epochs' keys either does
    with pytest.raises(Damaged):
        read(data, 5000, OTHER)
    with pytest.raises(Damaged):
        read(data, 5000, FileKey("chat", "umbrella", KEY.key))
    with pytest.raises(Damaged):
        read(data, 5000, KEY, name=NAME + "0")
    assert content(5000)[:32] not in data and start.fingerprint not in data


def test_what_is_written_twice_is_two_different_objects() -> None:
    (_, one), (_, other) = written(5000, KEY), written(5000, KEY)
    assert sum(a == b for a, b in zip(one, other, strict=True)) < 100


def test_one_of_another_format_is_none() -> None:
    _, data = written(300, None)
    reader = Reader(NAME, data, (), sealed=False)
    assert reader.of(b"f" * 16, 300) == reader.start
    for fingerprint, size in ((b"g" * 16, 300), (b"f" * 16, 301)):
        with pytest.raises(Damaged):
            reader.of(fingerprint, size)


def test_names_are_the_same_for_all_members_and_for_nothing_else() -> None:
    names = {
        blocks.name_of("kv/", pool, slab, key)
        for pool in ("a", "b")
        for slab in (b"s" * 16, b"t" * 16)
        for key in (b"k" * 16, b"l" * 16)
    }
    assert len(names) == 8 and blocks.name_of("kv/", "a", b"s" * 16, b"k" * 16) in names
    assert all(name.startswith("kv/") and len(name) == 3 + 32 for name in names)
    assert not any((b"k" * 16).hex() in name for name in names)


def hot(n: int, heat: float, depth: int = 0) -> HotBlock:
    return HotBlock(bytes([n]) * 16, bytes([n - 1]) * 16 if depth else b"", depth, heat)


@either_way
def test_a_hot_list_comes_back_aged(key: FileKey | None) -> None:
    now = time.time()
    listed = [hot(1, 4.0), hot(2, 2.0, depth=1)]
    data = hotlist.encode(NAME, listed, now, key)
    keys = list(filter(None, [key]))
    assert hotlist.decode(NAME, data, now, keys, sealed=bool(keys)) == listed
    later = hotlist.decode(NAME, data, now + HALF_LIFE_SECONDS, keys, sealed=bool(keys))
    assert [(block.key, block.parent, block.heat) for block in later] == [
        (listed[0].key, b"", 2.0),
        (listed[1].key, listed[0].key, 1.0),
    ]
    # a clock that is behind makes nothing hotter
    assert hotlist.decode(NAME, data, now - 9999, keys, sealed=bool(keys)) == listed
    assert len(data) <= hotlist.MAX_BYTES
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 4
        with pytest.raises(Damaged):
            hotlist.decode(NAME, bytes(changed), now, keys, sealed=bool(keys))


def test_lists_are_merged_by_the_hottest_and_what_has_cooled_is_forgotten() -> None:
    found = [hot(1, 4.0), hot(2, 3.0), hot(3, hotlist.LEAST_HEAT / 2)]
    assert hotlist.merged(found, [hot(2, 5.0), hot(1, 1.0), hot(4, 0.5)]) == [hot(2, 5.0), hot(1, 4.0), hot(4, 0.5)]
    many = [HotBlock(n.to_bytes(16, "big"), b"", 0, 1.0 + n) for n in range(hotlist.MAX_BLOCKS + 5)]
    kept = hotlist.merged([], many)
    assert len(kept) == hotlist.MAX_BLOCKS and kept[-1].heat == 6.0
