"""The other side's memory can be read and never written, and stays mapped while somebody reads it."""

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvpool_agent.store.memory import ArenaMemory
from kvpool_client import memory

SIZE = 2 * mmap.PAGESIZE


@pytest.fixture
def descriptor() -> Iterator[int]:
    made = os.memfd_create("test", os.MFD_CLOEXEC)
    os.ftruncate(made, SIZE)
    os.pwrite(made, b"content", 100)
    yield made
    os.close(made)


def is_mapped(address: int) -> bool:
    ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    return any(int(low, 16) <= address < int(high, 16) for low, high in ranges)


def test_a_mapping_shows_the_other_sides_bytes_as_they_change(descriptor: int) -> None:
    mapping = memory.ReadOnlyMapping(descriptor, SIZE)
    assert ctypes.string_at(mapping.address + 100, 7) == b"content"
    os.pwrite(descriptor, b"changed", 100)
    assert ctypes.string_at(mapping.address + 100, 7) == b"changed"
    mapping.close()


@pytest.mark.parametrize("size", [SIZE + 1, 0, -1])
def test_a_descriptor_that_holds_fewer_bytes_is_refused(descriptor: int, size: int) -> None:
    with pytest.raises(OSError, match="the descriptor holds"):
        memory.ReadOnlyMapping(descriptor, size)


def test_a_mapping_has_no_write_permission_and_a_write_faults(descriptor: int) -> None:
    mapping = memory.ReadOnlyMapping(descriptor, SIZE)
    start = f"{mapping.address:x}-"
    (line,) = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.startswith(start)]
    assert line.split()[1] == "r--s"
    mapping.close()
    program = (
        "import ctypes, os; from kvpool_client import memory; f = os.memfd_create('t'); os.ftruncate(f, 4096)\n"
        "m = memory.ReadOnlyMapping(f, 4096); ctypes.memmove(m.address, b'x', 1)"
    )
    done = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": os.pathsep.join(sys.path)}, check=False)
    assert done.returncode < 0


def test_a_descriptor_given_away_cannot_be_mapped_writable(descriptor: int) -> None:
    given = memory.reopen_read_only(descriptor)
    with pytest.raises(PermissionError):
        mmap.mmap(given, SIZE)
    with pytest.raises(OSError):
        os.pwrite(given, b"x", 0)
    assert not os.get_inheritable(given)
    os.close(given)


def test_a_retained_mapping_outlives_its_close_and_ends_with_its_last_user(descriptor: int) -> None:
    mapping = memory.ReadOnlyMapping(descriptor, SIZE)
    address = mapping.address
    assert mapping.retain() and mapping.retain()
    mapping.close()
    assert not mapping.retain()
    mapping.release()
    assert ctypes.string_at(address + 100, 7) == b"content"
    mapping.release()
    assert not is_mapped(address) and mapping.size == 0
    mapping.close()  # twice is once


def test_the_arena_is_whole_pages_within_its_limit_and_its_reader_is_read_only() -> None:
    arena = ArenaMemory.anonymous(3 * mmap.PAGESIZE + 17)
    assert arena.size == len(arena.view) == 3 * mmap.PAGESIZE
    source = memoryview(bytearray(b"abc"))
    memory.copy(arena.address + 5, memory.address_of(source), 3)
    assert bytes(arena.view[5:8]) == b"abc"
    reader = arena.reader()
    mapping = memory.ReadOnlyMapping(reader, arena.size)
    assert ctypes.string_at(mapping.address + 5, 3) == b"abc"
    mapping.close()
    with pytest.raises(PermissionError):
        mmap.mmap(reader, arena.size)
    os.close(reader)
