"""Real volumes that are full, read-only, frozen, gone or broken: the tier says which, nobody waits, and it comes back.

Mounts of a tmpfs and of ext4 on a loop device. A frozen file system keeps writers in the kernel as a disk that hangs
does; reads that hang are in tests/e2e/tiers/test_disk_tier.py, by a folder whose calls hang.
"""

import ctypes
import mmap
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from disk_slab import MIB, DiskSlab, wait_until

from kvpool_agent.store.disk import tier
from kvpool_agent.store.disk.folder import FOLDER

CHAIN = list(range(1, 7))
NO_MOUNTS = "this test mounts volumes: it needs root and loop devices"


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier, "CHECK_SECONDS", 0.2)


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A volume of one MiB."""
    folder = tmp_path / "tmpfs"
    folder.mkdir()
    try:
        run("mount", "-t", "tmpfs", "-o", "size=1M", "none", folder)
    except subprocess.CalledProcessError:
        pytest.skip(NO_MOUNTS)
    yield folder
    run("umount", "-l", folder)


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[Path]:
    """A volume on a loop device over the file `image`, beside it."""
    folder, image = tmp_path / "ext4", tmp_path / "image"
    folder.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 64 * MIB)
    try:
        run("mkfs.ext4", "-q", "-O", "^has_journal", image)
        run("mount", "-o", "loop", image, folder)
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip(NO_MOUNTS)
    yield folder
    with suppress(subprocess.CalledProcessError):  # a test has done it
        run("umount", "-l", folder)


def test_a_full_volume_keeps_what_it_has_and_takes_in_new_blocks_in_its_place(tmpfs: Path) -> None:
    disk = DiskSlab(tmpfs).start()
    disk.keep(CHAIN)
    with (tmpfs / "others").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    disk.put([11])
    disk.use_again([11])
    wait_until(lambda: disk.counters.get("disk_full", 0) == 1, "it was noticed")
    assert (disk.tier.status().state, disk.tier.status().reason) == ("ready", "disk_full")
    assert disk.stored(CHAIN) == [True] * 6
    disk.keep([12])
    assert disk.stored([*CHAIN, 11, 12]) == [False] * 7 + [True]
    assert disk.files("tmp-*") == []
    disk.drop([12])
    assert (disk.load([12]), disk.right([12]), disk.no_slot_is_lost()) == ("", [True], True)
    disk.close()


def test_a_volume_that_turns_read_only_is_no_tier_until_it_can_be_written_again(tmpfs: Path) -> None:
    disk = DiskSlab(tmpfs).start()
    disk.keep(CHAIN)
    run("mount", "-o", "remount,ro", tmpfs)
    wait_until(lambda: disk.tier.status().state == "degraded", "it was noticed")
    assert disk.tier.status().reason == "disk_read_only"
    assert (disk.stored(CHAIN), disk.load(CHAIN)) == ([False] * 6, "")
    run("mount", "-o", "remount,rw", tmpfs)
    wait_until(lambda: disk.tier.status().state == "ready", "it is a tier again")
    assert disk.stored(CHAIN) == [True] * 6
    disk.close()


def test_a_volume_that_is_read_only_from_the_start_is_named(tmpfs: Path) -> None:
    run("mount", "-o", "remount,ro", tmpfs)
    disk = DiskSlab(tmpfs).start()
    assert (disk.tier.status().state, disk.tier.status().reason) == ("degraded", "disk_read_only")
    disk.close()


def test_a_frozen_volume_holds_nobody_up_and_is_a_tier_again_when_it_goes_on(ext4: Path) -> None:
    disk = DiskSlab(ext4).start()
    disk.keep(CHAIN)
    disk.put([11, 12, 13])
    run("fsfreeze", "-f", ext4)
    try:
        disk.use_again([11, 12, 13])
        disk.drop(CHAIN)
        assert disk.load(CHAIN) == ""  # a frozen volume still reads
        wait_until(lambda: disk.tier.status().state == "degraded", "it was noticed")
        assert disk.tier.status().reason == "disk_slow"
        assert disk.load(CHAIN) == "" and disk.right(CHAIN) == [True] * 6
        assert disk.slab.arena.used_slots == 9
        wait_until(lambda: disk.counters["disk_slow"] >= 4, "it was tried again, three times", 90)
        assert disk.tier._writes.stuck == 1, "one thread hangs, however often it is tried again"
    finally:
        run("fsfreeze", "-u", ext4)
    wait_until(lambda: disk.tier.status().state == "ready", "it is a tier again", 90)
    assert disk.stored(CHAIN) == [True] * 6
    disk.use_again([11, 12, 13])
    wait_until(lambda: disk.stored([11, 12, 13]) == [True] * 3, "it writes again")
    assert (disk.files("tmp-*"), disk.tier._writes.stuck, disk.no_slot_is_lost()) == ([], 0, True)
    disk.close()


def test_a_volume_that_is_unmounted_below_the_agent_is_named(ext4: Path) -> None:
    disk = DiskSlab(ext4).start()
    disk.keep(CHAIN)
    run("umount", "-l", ext4)
    wait_until(lambda: disk.tier.status().reason == "disk_vanished", "it was noticed")
    disk.close()


def test_a_device_that_returns_errors_is_no_tier_and_costs_no_slot(ext4: Path, tmp_path: Path) -> None:
    disk = DiskSlab(ext4).start()
    disk.keep(CHAIN)
    disk.drop(CHAIN)
    os.truncate(tmp_path / "image", MIB)
    assert disk.load(CHAIN) == "disk_failed"
    assert disk.tier.status().reason == "disk_io_error"
    assert disk.no_slot_is_lost()
    disk.close()


def test_bits_that_the_device_has_flipped_are_never_served(ext4: Path, tmp_path: Path) -> None:
    disk = DiskSlab(ext4).start()
    disk.keep(CHAIN)
    disk.drop(CHAIN)
    image = bytearray((tmp_path / "image").read_bytes())
    places = [i for n in CHAIN if (i := image.find(disk.bytes_of(n))) >= 0]
    assert len(places) == 6, "each block lies on the device as it is"
    with (tmp_path / "image").open("r+b") as file:
        file.seek(places[3] + 77)
        file.write(bytes([image[places[3] + 77] ^ 16]))
        os.fsync(file.fileno())
    assert disk.load(CHAIN) == "disk_failed"
    assert disk.right(CHAIN) == [True] * 3 + [False] * 3
    assert (disk.counters["disk_damaged_files"], disk.no_slot_is_lost()) == (1, True)
    disk.close()


def cached(path: Path) -> int:
    """Bytes of a file that lie in the page cache."""
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as m,
    ):
        pages = (ctypes.c_ubyte * -(-len(m) // mmap.PAGESIZE))()
        start = ctypes.addressof(ctypes.c_char.from_buffer(m))
        assert not ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(m)), pages)
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


@pytest.mark.parametrize("slot_bytes", [1 << 18, (1 << 18) + 1000], ids=["whole pages", "part of a page"])
def test_what_is_written_and_read_does_not_stay_in_the_page_cache(tmp_path: Path, slot_bytes: int) -> None:
    disk = DiskSlab(tmp_path, slots=200, slot_bytes=slot_bytes).start()
    numbers = list(range(1, 161))  # 40 MiB, so more than is synced at a time
    disk.keep(numbers)
    files = disk.files()
    assert len(files) == 2 and sum(f.stat().st_size for f in files) > 160 * slot_bytes
    assert sum(map(cached, files)) == 0
    disk.drop(numbers)
    assert disk.load(numbers, 60) == ""
    assert disk.right(numbers) == [True] * 160
    assert sum(map(cached, files)) == 0
    (tmp_path / FOLDER / files[0].name).read_bytes()
    assert cached(files[0]) > 0, "this test can fail"
    disk.close()
