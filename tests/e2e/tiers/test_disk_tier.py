"""The disk tier: what two requests contained comes back byte for byte, within its quota, and nothing else does."""

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from disk_slab import DiskSlab, key, wait_until

from kvpool_agent.store.disk import lanes, pending, scan, tier
from kvpool_agent.store.disk.folder import FOLDER, TEMPORARY, Folder
from kvpool_agent.store.disk.header import ExtentHeader

CHAIN = list(range(1, 7))


@pytest.fixture(params=[(8192, ()), (5000, ()), (5000, [b"k" * 32])], ids=["whole pages", "part of a page", "sealed"])
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[DiskSlab]:
    slot_bytes, keys = request.param
    made = DiskSlab(tmp_path, slot_bytes=slot_bytes, keys=keys).start()
    assert made.tier.status().state == "ready"
    yield made
    made.close()


def test_a_chain_comes_back_from_the_disk_byte_for_byte(disk: DiskSlab) -> None:
    disk.keep(CHAIN)
    (file,) = disk.files()
    assert disk.tier.status().used_bytes == file.stat().st_size
    disk.drop(CHAIN)
    assert disk.right(CHAIN) == [False] * 6
    for _ in range(2):  # and what is here is not moved, nor measured
        assert disk.load(CHAIN) == ""
    assert disk.right(CHAIN) == [True] * 6
    assert {path: cost.moved for path, cost in disk.costs.snapshot().paths.items()} == {"disk": 1}
    assert disk.account.transfers["disk_out"].blocks == disk.account.transfers["disk_in"].blocks == 6
    assert disk.no_slot_is_lost()


def test_a_file_s_name_says_nothing_and_is_the_owner_s_alone(disk: DiskSlab) -> None:
    disk.keep(CHAIN)
    (file,) = disk.files("[!l]*")
    assert len(file.name) == 32 and all(key(n).hex() not in file.name for n in CHAIN)
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_another_life_finds_what_lies_there(disk: DiskSlab) -> None:
    disk.keep(CHAIN)
    disk.keep([11, 12])
    then = disk.again()
    assert (then.counters["disk_recovered_blocks"], then.tier.status().files) == (8, 2)
    assert then.load([*CHAIN, 11, 12]) == ""
    assert then.right([*CHAIN, 11, 12]) == [True] * 8
    then.close()


def test_replica_copies_and_what_is_there_already_are_not_written(disk: DiskSlab) -> None:
    disk.put([21, 22], foreign=True)
    disk.use_again([21, 22])
    disk.keep(CHAIN)  # the queue is in order: the copies have had their turn
    disk.use_again(CHAIN)
    disk.keep([31])
    assert disk.stored([21, 22]) == [False, False]
    assert disk.account.transfers["disk_out"].blocks == 7
    assert len(disk.files()) == 2


def test_while_it_is_paused_nothing_is_written(disk: DiskSlab) -> None:
    disk.put(CHAIN)
    disk.tier.paused = True
    disk.use_again(CHAIN)
    disk.tier.paused = False
    disk.keep([31])
    assert disk.stored(CHAIN) == [False] * 6


def test_the_quota_holds_and_what_was_used_last_stays(tmp_path: Path) -> None:
    disk = DiskSlab(tmp_path, size=1_000_000, slots=400).start()
    assert disk.tier.status().limit_bytes == 900_000
    for n in range(100, 200):
        disk.keep([n])
        assert sum(file.stat().st_size for file in disk.files("[!l]*")) <= 900_000
        if n > 100:
            disk.use_again([100])  # touched, so it outlives younger ones
    fit = 900_000 // (4096 + 8192)
    assert sum(disk.stored(range(100, 200))) == fit
    assert disk.stored([100, 101, 199]) == [True, False, True]
    assert disk.counters["disk_evicted_blocks"] == 100 - fit
    disk.close()


def test_files_of_another_format_go_first(tmp_path: Path) -> None:
    disk = DiskSlab(tmp_path, size=200_000, slots=400).start()
    disk.slab.fingerprint = b"g" * 16
    disk.keep(CHAIN)
    disk.slab.fingerprint = b"f" * 16
    assert disk.stored(CHAIN) == [False] * 6
    disk.keep([11])
    assert len(disk.files()) == 2
    for n in range(100, 110):
        disk.keep([n])
    assert disk.counters["disk_evicted_blocks"] == 6
    assert disk.stored([11, *range(100, 110)]) == [True] * 11
    disk.close()


def test_a_lower_quota_holds_from_the_start(disk: DiskSlab) -> None:
    for n in range(20, 40):
        disk.keep([n])
    then = disk.again(size=100_000)
    assert then.tier.status().used_bytes == sum(f.stat().st_size for f in then.files("[!l]*")) <= 90_000
    then.close()


@pytest.mark.parametrize("place", [20, 9000, -5000, -1], ids=["header", "first block", "last block", "padding"])
def test_a_flipped_bit_is_never_served(disk: DiskSlab, place: int) -> None:
    disk.keep(CHAIN)
    disk.drop(CHAIN)
    (file,) = disk.files()
    data = bytearray(file.read_bytes())
    data[place] ^= 4
    file.write_bytes(data)
    then = disk.again()
    reason = then.load(CHAIN)
    assert then.no_slot_is_lost()
    if place == -1 and then.slot_bytes == 5000:
        assert (reason, then.right(CHAIN)) == ("", [True] * 6)  # nothing that was written lies there
    else:
        assert not all(then.right(CHAIN))
        put_aside = then.counters["disk_damaged_files"] + then.counters["disk_unopened_files"]
        assert (put_aside, then.files(), len(then.files("bad-*"))) == (1, [], 1)
        assert then.stored(CHAIN) == [False] * 6
    then.close()


def test_what_a_power_cut_leaves_is_served_whole_or_not_at_all(disk: DiskSlab) -> None:
    disk.keep(CHAIN)
    (file,) = disk.files()
    whole, folder = file.read_bytes(), file.parent
    assert disk.again().load(CHAIN) == ""
    cuts = sorted({*range(0, len(whole), 4096), *(c + 1 for c in range(0, len(whole), 4096)), 100, len(whole) - 1})
    for cut in cuts:
        for name in (file.name, TEMPORARY + file.name):
            for old in folder.iterdir():
                old.unlink()
            (folder / name).write_bytes(whole[:cut])
            then = disk.beside().start()
            assert then.stored(CHAIN) == [False] * 6, (cut, name)
            assert then.files("tmp-*") == []
            then.close()


def test_the_quarantine_is_bounded(disk: DiskSlab) -> None:
    for n in range(20, 32):
        disk.keep([n])
    for file in disk.files():
        file.write_bytes(b"x" * 100)
    then = disk.again()
    assert (then.counters["disk_damaged_files"], len(then.files("bad-*"))) == (12, scan.BAD_KEPT)
    then.close()


def test_strange_things_with_an_extent_s_name_are_put_aside_and_others_left_alone(disk: DiskSlab) -> None:
    folder = disk.path / FOLDER
    os.mkfifo(folder / ("0" * 32))
    (folder / ("1" * 32)).mkdir()
    (folder / ("2" * 32)).symlink_to("/etc/passwd")
    (folder / "notes.txt").write_text("mine")
    then = disk.again()
    assert then.tier.status().state == "ready"
    assert then.counters["disk_damaged_files"] == 3
    assert then.files() == []
    assert (folder / "notes.txt").read_text() == "mine"
    then.keep(CHAIN)
    then.close()


def test_a_pipe_in_place_of_a_file_holds_nobody_up(disk: DiskSlab) -> None:
    disk.keep(CHAIN)
    disk.drop(CHAIN)
    (file,) = disk.files()
    file.unlink()
    os.mkfifo(file)
    assert disk.load(CHAIN) == "disk_failed"
    assert (disk.counters["disk_damaged_files"], disk.no_slot_is_lost()) == (1, True)


def test_a_file_that_is_gone_is_a_miss_and_the_others_serve(disk: DiskSlab) -> None:
    disk.keep(CHAIN)
    (file,) = disk.files()
    disk.keep([11])
    disk.drop([*CHAIN, 11])
    file.unlink()
    assert disk.load([*CHAIN, 11]) == "disk_failed"
    assert (disk.right([*CHAIN, 11]), disk.counters["disk_lost_files"]) == ([False] * 6 + [True], 1)
    assert disk.no_slot_is_lost()


def test_a_folder_that_vanished_is_no_tier_and_then_one_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier, "CHECK_SECONDS", 0.1)
    disk = DiskSlab(tmp_path).start()
    disk.keep(CHAIN)
    (disk.path / FOLDER).rename(disk.path / "away")
    disk.put([11])
    disk.use_again([11])
    wait_until(lambda: disk.counters.get("disk_vanished", 0) == 1, "it was noticed")
    wait_until(lambda: disk.tier.status().state == "ready", "it is a tier again")
    disk.keep([12])
    assert disk.stored([*CHAIN, 12]) == [False] * 6 + [True]
    disk.close()


def test_two_agents_never_share_a_folder(disk: DiskSlab) -> None:
    other = disk.beside().start()
    assert (other.tier.status().state, other.tier.status().reason) == ("degraded", "disk_in_use")
    disk.keep(CHAIN)
    disk.close()
    wait_until(lambda: other.tier.status().state == "ready", "the folder is free")
    assert other.stored(CHAIN) == [True] * 6
    other.close()


class Faulty(Folder):
    """A folder whose calls fail, or hang until `go` is set, as a test says."""

    error: OSError | None = None
    go = threading.Event()

    def write(self, *arguments: object) -> tuple[str, ExtentHeader] | None:  # type: ignore[override]
        self._meet()
        return super().write(*arguments)  # type: ignore[arg-type]

    def read(self, name: str, header: ExtentHeader, places: object) -> None:
        self._meet()
        super().read(name, header, places)  # type: ignore[arg-type]

    def _meet(self) -> None:
        if type(self).error is not None:
            raise type(self).error  # type: ignore[misc]
        type(self).go.wait()


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Faulty]]:
    """A tier's folder from now on."""
    monkeypatch.setattr(tier, "Folder", Faulty)
    monkeypatch.setattr(tier, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(lanes, "LEAST_SECONDS", 0.3)
    Faulty.error = None
    Faulty.go = threading.Event()
    Faulty.go.set()
    yield Faulty
    Faulty.go.set()


@pytest.mark.parametrize(
    ("number", "word"),
    [(errno.EIO, "disk_io_error"), (errno.EROFS, "disk_read_only"), (errno.ENODEV, "disk_vanished")],
)
def test_a_fault_of_the_disk_is_named_and_tried_again(
    faulty: type[Faulty], tmp_path: Path, number: int, word: str
) -> None:
    disk = DiskSlab(tmp_path).start()
    disk.put(CHAIN)
    faulty.error = OSError(number, os.strerror(number))
    disk.use_again(CHAIN)
    wait_until(lambda: disk.counters.get(word, 0) == 1, "it was named")
    wait_until(lambda: disk.tier.status().state == "ready", "it was tried again")
    faulty.error = None
    disk.use_again(CHAIN)
    wait_until(lambda: all(disk.stored(CHAIN)), "it was written")
    assert (disk.counters["disk_dropped_failed"], disk.no_slot_is_lost()) == (6, True)
    disk.close()


def test_a_full_volume_keeps_what_it_has_and_makes_room_for_new(faulty: type[Faulty], tmp_path: Path) -> None:
    disk = DiskSlab(tmp_path).start()
    disk.keep(CHAIN)
    disk.put([11])
    faulty.error = OSError(errno.ENOSPC, "full")
    disk.use_again([11])
    wait_until(lambda: disk.counters.get("disk_full", 0) == 1, "it was noticed")
    faulty.error = None
    assert (disk.tier.status().state, disk.tier.status().reason) == ("ready", "disk_full")
    disk.keep([12])
    assert (disk.stored([*CHAIN, 12]), disk.counters["disk_evicted_blocks"]) == ([False] * 6 + [True], 6)
    disk.close()


@pytest.mark.parametrize(("seconds", "reason"), [(10.0, "disk_failed"), (0.05, "deadline")])
def test_a_disk_that_hangs_costs_a_request_its_patience_once_and_no_slot(
    faulty: type[Faulty], tmp_path: Path, seconds: float, reason: str
) -> None:
    disk = DiskSlab(tmp_path).start()
    disk.keep(CHAIN)
    disk.drop(CHAIN)
    faulty.go.clear()
    assert disk.load(CHAIN, seconds) == reason
    wait_until(lambda: disk.tier.status().reason == "disk_slow", "it is known, though nobody waits for it any more")
    assert disk.slab.arena.used_slots == 6  # bytes may still come
    assert disk.stored(CHAIN) == [False] * 6
    wait_until(lambda: disk.counters["disk_slow"] >= 3, "it is not opened while the call hangs")
    faulty.go.set()
    wait_until(lambda: disk.tier.status().state == "ready", "the call has come back")
    assert disk.load(CHAIN) == ""
    assert (disk.right(CHAIN), disk.no_slot_is_lost()) == ([True] * 6, True)
    disk.close()


def test_a_request_waits_no_longer_than_its_deadline_and_what_comes_later_is_kept(
    faulty: type[Faulty], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "LEAST_SECONDS", 60.0)
    disk = DiskSlab(tmp_path).start()
    disk.keep(CHAIN)
    disk.drop(CHAIN)
    faulty.go.clear()
    assert disk.load(CHAIN, 0.05) == "deadline"
    assert disk.tier.status().state == "ready"
    cost = disk.costs.snapshot().paths["disk"]  # it was waited for in vain, and that is no time for a block
    assert cost.moved == 1 and cost.queue.p50 > 0.04 and cost.rate.p50 < disk.slot_bytes / 0.04
    faulty.go.set()
    wait_until(lambda: disk.right(CHAIN) == [True] * 6, "the bytes came")
    assert disk.no_slot_is_lost()
    disk.close()


def test_while_the_disk_hangs_the_queue_is_bounded_and_nobody_waits(
    faulty: type[Faulty], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "LEAST_SECONDS", 60.0)
    monkeypatch.setattr(pending, "MAX_KEYS", 4)
    disk = DiskSlab(tmp_path).start()
    disk.put(CHAIN)
    faulty.go.clear()
    disk.use_again([1])
    wait_until(lambda: disk.slab.arena.lease([], 0.0, 0.0)[0] > 1 and not disk.tier._shelves.waiting, "one hangs")
    disk.use_again(CHAIN)
    assert disk.counters["disk_dropped_queue_full"] == 2
    faulty.go.set()
    wait_until(lambda: disk.stored(CHAIN) == [True] * 4 + [False] * 2, "those that waited were written")
    disk.close()


def test_bytes_that_are_not_what_was_stored_are_not_written(disk: DiskSlab) -> None:
    disk.put([1])
    lease, (block,) = disk.slab.arena.lease([key(1)], time.monotonic(), 10.0)
    assert block is not None
    disk.slab.view(block.slot)[0] ^= 1
    disk.slab.arena.release(lease)
    disk.use_again([1])
    wait_until(lambda: disk.counters.get("disk_dropped_changed", 0) == 1, "it was refused")
    assert (disk.counters["tag_failures"], disk.files()) == (1, [])


def test_what_a_scan_has_no_time_for_counts_and_goes_first(disk: DiskSlab, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.keep(CHAIN)
    disk.keep([11])
    monkeypatch.setattr(scan, "SCAN_SECONDS", 0.0)
    then = disk.again()
    assert (then.counters["disk_unread_files"], then.tier.status().files, then.tier.status().blocks) == (2, 2, 0)
    assert then.tier.status().used_bytes == sum(f.stat().st_size for f in then.files())
    then.close()


def test_a_volume_that_is_not_there_is_named(tmp_path: Path) -> None:
    disk = DiskSlab(tmp_path / "none").start()
    assert (disk.tier.status().state, disk.tier.status().reason) == ("degraded", "disk_vanished")
    disk.use_again(CHAIN)
    assert (disk.stored(CHAIN), disk.load(CHAIN)) == ([False] * 6, "")
    disk.close()


def test_what_is_evicted_before_its_turn_leaves_its_slot_until_it_is_written(
    faulty: type[Faulty], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as may leave theirs: of 96 slots six."""
    monkeypatch.setattr(lanes, "LEAST_SECONDS", 60.0)
    disk, arena = DiskSlab(tmp_path).start(), 96
    disk.put(range(100, 100 + arena))
    faulty.go.clear()
    disk.use_again([195])
    wait_until(lambda: not disk.tier._shelves.waiting, "one hangs, and is leased")
    disk.use_again(range(100, 195))
    taken = disk.slab.arena.reserve(20, time.monotonic())  # from the end of the chain, so of nothing that is leased
    assert taken == []
    disk.drop([195])
    taken = disk.slab.arena.reserve(20, time.monotonic())
    assert len(taken) == 20 and len(disk.slab.arena) == arena - 1 - 20 - 6
    disk.slab.arena.give_back(taken)
    faulty.go.set()
    wait_until(lambda: all(disk.stored(range(100, 169))), "all that was left was written")
    wait_until(lambda: sum(disk.stored(range(100, 195))) == 95 - 20, "and what left its slot")
    assert disk.no_slot_is_lost()
    disk.close()
