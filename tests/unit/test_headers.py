"""Headers in the arena's memory: what is damaged, half-written or of another version is nobody's block, never an
error; and no moment of death leaves a slot that looks filled and is not."""

import contextlib
import random
import struct

import pytest

from kvpool_agent.store import headers
from kvpool_agent.store.arena import Arena
from kvpool_agent.store.headers import ArenaHeader, SlotHeader
from kvpool_agent.store.table import HeaderTable
from kvpool_agent.store.tag import tag_of
from kvpool_contract.names import format_fingerprint

FIELDS = {"engine": "e", "model": "m"}
SLOT_BYTES, SIZE = 512, 8192


def key(n: int) -> bytes:
    return bytes([n]) * 16


def cut(memory: bytearray) -> HeaderTable:
    return HeaderTable.made(memoryview(memory), format_fingerprint(FIELDS), FIELDS, SLOT_BYTES)


def test_slots_and_headers_fill_the_memory_and_never_overlap() -> None:
    for size in range(0, 40_000, 64):
        for fields in (0, 64, 4096):
            count = headers.slots_that_fit(size, SLOT_BYTES, fields)
            beside = headers.ARENA_HEADER_BYTES + fields
            each = SLOT_BYTES + headers.SLOT_HEADER_BYTES
            assert count * each + beside <= size or not count
            assert (count + 1) * each + beside > size


def test_a_cut_memory_is_found_with_its_format_and_all_its_slots_are_free() -> None:
    memory = bytearray(random.Random(1).randbytes(SIZE))
    assert HeaderTable.found(memoryview(memory)) is None
    made = cut(memory)
    found = HeaderTable.found(memoryview(memory))
    assert found is not None and found.header == made.header
    assert found.header == ArenaHeader(format_fingerprint(FIELDS), FIELDS, SLOT_BYTES, made.header.slot_count)
    assert list(found.not_free()) == []


def test_no_flipped_bit_of_the_arena_header_or_the_fields_is_overlooked() -> None:
    memory = bytearray(SIZE)
    cut(memory)
    used = len(headers.encode_fields(FIELDS)) + 56
    first = SIZE - headers.ARENA_HEADER_BYTES - len(headers.encode_fields(FIELDS))
    for bit in range(8 * used):
        memory[first + bit // 8] ^= 1 << bit % 8
        assert HeaderTable.found(memoryview(memory)) is None
        memory[first + bit // 8] ^= 1 << bit % 8
    assert HeaderTable.found(memoryview(memory)) is not None


@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_another_layout_version_is_discarded_though_it_checks(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = bytearray(SIZE)
    with monkeypatch.context() as other:
        other.setattr(headers, "LAYOUT_VERSION", version)
        cut(memory)
        assert HeaderTable.found(memoryview(memory)) is not None
    assert HeaderTable.found(memoryview(memory)) is None


@pytest.mark.parametrize("size", [0, 64, 128, 4096, SIZE + 4096])
def test_memory_of_another_size_is_discarded(size: int) -> None:
    memory = bytearray(SIZE)
    cut(memory)
    resized = memory[:size] + bytes(max(0, size - SIZE))
    assert HeaderTable.found(memoryview(resized)) is None
    moved = bytes(max(0, size - SIZE)) + memory[-size:] if size else b""  # the header at the end, the slots elsewhere
    assert size == 0 or HeaderTable.found(memoryview(moved)) is None


def test_memory_that_was_wiped_is_found_no_more() -> None:
    memory = bytearray(SIZE)
    cut(memory).wipe()
    assert HeaderTable.found(memoryview(memory)) is None


def test_no_flipped_bit_of_a_slot_header_is_overlooked_and_none_makes_a_free_slot_a_filled_one() -> None:
    data = headers.encode_slot(3, SlotHeader(key(1), key(2), key(3), True))
    assert len(data) == headers.SLOT_HEADER_BYTES
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert headers.decode_slot(3, bytes(flipped)) is None
    assert {headers.FREE ^ 1 << bit for bit in range(8)}.isdisjoint({headers.FILLED})
    assert headers.decode_slot(4, data) is None  # another slot's


def test_a_header_that_lies_about_its_format_is_discarded() -> None:
    memory = bytearray(SIZE)
    HeaderTable.made(memoryview(memory), b"x" * 16, FIELDS, SLOT_BYTES)
    assert HeaderTable.found(memoryview(memory)) is None


def test_random_memory_is_never_an_error() -> None:
    draw = random.Random(2)
    for _ in range(300):
        memory = bytearray(draw.randbytes(SIZE))
        at = SIZE - headers.ARENA_HEADER_BYTES
        struct.pack_into("<8sII", memory, at, headers.MAGIC, headers.LAYOUT_VERSION, draw.choice([0, 64, 2**31]))
        assert HeaderTable.found(memoryview(memory)) is None
        assert headers.decode_slot(0, draw.randbytes(64)) is None


class Died(BaseException):
    pass


class Mortal:
    """Memory whose writer dies after `life` bytes; the bytes of one write land in any order."""

    def __init__(self, memory: bytearray, life: int, draw: random.Random) -> None:
        self.memory, self.life, self.draw = memory, life, draw

    def __len__(self) -> int:
        return len(self.memory)

    def __setitem__(self, where: int | slice, what: int | bytes) -> None:
        first = where if isinstance(where, int) else where.indices(len(self.memory))[0]
        data = bytes([what]) if isinstance(what, int) else what
        for i in self.draw.sample(range(len(data)), len(data)):
            if not self.life:
                raise Died
            self.life -= 1
            self.memory[first + i] = data[i]


def live(memory: Mortal, arena: Arena) -> None:
    """Fills the whole arena with a chain, then again with others, so that every slot changes its block."""
    for n in range(3 * arena.slot_count):
        (slot,) = arena.reserve(1, 0.0)
        data = bytes([n]) * SLOT_BYTES
        memory[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] = data
        arena.commit(key(n), key(n - 1) if n % 3 else b"", slot, tag_of(key(n), memoryview(data)), foreign=False)


def test_death_at_any_byte_leaves_no_slot_that_looks_filled_and_is_not() -> None:
    draw = random.Random(3)
    small = 8 * (SLOT_BYTES + 64) + 256
    seen = set()
    life = 0
    while True:
        memory = bytearray(small)
        table = cut(memory)
        count = table.header.slot_count
        mortal = Mortal(memory, life, draw)
        table._memory = mortal  # type: ignore[assignment]
        try:
            live(mortal, Arena(count, table))
            break
        except Died:
            life += draw.randint(1, 40)
        left = HeaderTable.found(memoryview(memory))
        assert left is not None
        filled = 0
        for slot in left.not_free():
            header = left.read(slot)
            if header is not None:
                bytes_of_it = memoryview(memory)[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]
                assert tag_of(header.key, bytes_of_it) == header.tag
                filled += 1
        seen.add(filled)
    assert seen == set(range(count + 1))
    assert life > 3 * count * SLOT_BYTES


def test_death_while_the_memory_is_cut_leaves_it_without_headers_or_with_free_slots() -> None:
    draw = random.Random(4)
    outcomes = set()
    for life in range(0, 2000, 3):
        memory = bytearray(SIZE)
        old = cut(memory)
        old.fill(0, SlotHeader(key(1), b"", key(2), False))
        mortal = Mortal(memory, life, draw)
        with contextlib.suppress(Died):
            HeaderTable.made(mortal, format_fingerprint({"other": 1}), {"other": 1}, 256)  # type: ignore[arg-type]
        found = HeaderTable.found(memoryview(memory))
        if found is None:
            outcomes.add("none")
        elif found.header.fields == FIELDS:
            assert life == 0
            outcomes.add("old")
        else:
            assert list(found.not_free()) == []
            outcomes.add("new")
    assert outcomes == {"none", "old", "new"}
