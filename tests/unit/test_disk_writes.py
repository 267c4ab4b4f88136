"""A write whose bytes may not be those that were meant leaves no file; any other ends in a whole one."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from disk_slab import DiskSlab, wait_until

from kvpool_agent.store.disk import lanes, tier
from kvpool_agent.store.disk.folder import Folder
from kvpool_agent.store.disk.header import ExtentHeader

CHAIN = list(range(1, 7))


def test_what_is_no_longer_leased_when_it_is_written_is_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskSlab(tmp_path).start()
    disk.put(CHAIN)
    monkeypatch.setattr(disk.slab.arena, "renew", lambda *_: False)
    disk.use_again(CHAIN)
    wait_until(lambda: disk.counters.get("disk_dropped_changed", 0) == 6, "it was thrown away")
    assert (disk.stored(CHAIN), disk.files(), disk.files("tmp-*")) == ([False] * 6, [], [])
    monkeypatch.undo()
    disk.use_again(CHAIN)
    wait_until(lambda: all(disk.stored(CHAIN)), "it is written when it stays leased")
    disk.close()


def test_a_write_that_hung_leaves_no_file_when_it_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks may have made way long before."""
    go, wrote = threading.Event(), threading.Event()

    class Hanging(Folder):
        def write(self, *arguments: object) -> tuple[str, ExtentHeader] | None:  # type: ignore[override]
            go.wait()
            try:
                return super().write(*arguments)  # type: ignore[arg-type]
            finally:
                wrote.set()

    monkeypatch.setattr(tier, "Folder", Hanging)
    monkeypatch.setattr(tier, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(lanes, "LEAST_SECONDS", 0.3)
    disk = DiskSlab(tmp_path).start()
    disk.put(CHAIN)
    disk.use_again(CHAIN)
    wait_until(lambda: disk.tier.status().reason == "disk_slow", "it was left behind")
    assert not wrote.is_set()
    go.set()
    wait_until(lambda: disk.tier.status().state == "ready", "the call has come back")
    assert (disk.stored(CHAIN), disk.files(), disk.files("tmp-*")) == ([False] * 6, [], [])
    assert (disk.counters["disk_dropped_failed"], disk.no_slot_is_lost()) == (6, True)
    disk.close()


def test_a_file_that_is_put_aside_in_the_middle_of_a_write_leaves_the_write_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, filled = threading.Event(), threading.Event()

    class Slow(Folder):
        def write(
            self, header: ExtentHeader, blocks: Sequence[memoryview], still_right: Callable[[], bool], *key: object
        ) -> tuple[str, ExtentHeader] | None:
            def right() -> bool:
                filled.set()
                go.wait(30.0)
                return still_right()

            return super().write(header, blocks, right, *key)  # type: ignore[arg-type]

    monkeypatch.setattr(tier, "Folder", Slow)
    monkeypatch.setattr(lanes, "LEAST_SECONDS", 60.0)
    disk = DiskSlab(tmp_path).start()
    go.set()
    disk.keep([11])
    disk.drop([11])
    (damaged,) = disk.files()
    damaged.write_bytes(damaged.read_bytes()[:-1])
    go.clear()
    filled.clear()
    disk.put(CHAIN)
    disk.use_again(CHAIN)
    wait_until(filled.is_set, "all bytes lie under a temporary name")
    assert disk.load([11]) == "disk_failed"
    wait_until(lambda: disk.tier.status().files == 1, "the damaged one is put aside")
    assert (len(disk.files("bad-*")), len(disk.files("tmp-*"))) == (1, 1)
    go.set()
    wait_until(lambda: all(disk.stored(CHAIN)), "it is written")
    assert (disk.tier.status().state, disk.counters.get("disk_vanished", 0)) == ("ready", 0)
    disk.drop(CHAIN)
    assert (disk.load(CHAIN), disk.right(CHAIN)) == ("", [True] * 6)
    disk.close()
