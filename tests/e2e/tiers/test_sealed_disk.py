"""Where cache namespaces have keys, files are sealed: they tell nothing, and open for whom they were written alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from disk_slab import DiskSlab, key, wait_until

from kvpool_agent.store.disk import scan
from kvpool_agent.store.disk.folder import FOLDER

CHAIN = list(range(1, 7))
OLD, NEW, OTHER = b"k" * 32, b"n" * 32, b"o" * 32


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskSlab]:
    made = DiskSlab(tmp_path, keys=[OLD]).start()
    assert made.tier.status().sealed
    yield made
    made.close()


def put_aside(disk: DiskSlab) -> tuple[int, int, int]:
    """Files that no key opened, files left, files in quarantine."""
    return disk.counters["disk_unopened_files"], len(disk.files()), len(disk.files("bad-*"))


@pytest.mark.parametrize("slot_bytes", [1024, 256 << 10, 700_000, 5 << 20], ids="{:,} bytes".format)
def test_blocks_of_any_size_come_back_byte_for_byte(tmp_path: Path, slot_bytes: int) -> None:
    disk = DiskSlab(tmp_path, slots=8, slot_bytes=slot_bytes, keys=[OLD]).start()
    disk.keep(CHAIN)
    assert disk.tier.status().used_bytes == sum(file.stat().st_size for file in disk.files())
    then = disk.again()
    assert then.load([5, 6, 1, 3, 2, 4]) == ""
    assert (then.right(CHAIN), then.no_slot_is_lost()) == ([True] * 6, True)
    then.close()


def test_nothing_of_what_was_stored_lies_in_the_folder(disk: DiskSlab) -> None:
    disk.keep(CHAIN)
    clear = DiskSlab(disk.path / "clear").path
    clear.mkdir()
    beside = DiskSlab(clear).start()
    beside.keep(CHAIN)
    meant = [key(n) for n in CHAIN] + [disk.slab.fingerprint, disk.slab.id]
    (sealed,), (open_,) = disk.files(), beside.files()
    beside.close()
    assert [one in open_.read_bytes() for one in meant] == [True] * 7 + [False]
    assert [one in sealed.read_bytes() for one in meant] == [False] * 8
    assert len(sealed.name) == 32 and not any(key(n).hex() in sealed.name for n in CHAIN)


def test_what_is_written_twice_is_two_different_files(tmp_path: Path) -> None:
    bodies = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        disk = DiskSlab(tmp_path / name, keys=[OLD]).start()
        disk.keep(CHAIN)
        bodies.append(disk.files()[0].read_bytes())
        disk.close()
    assert len(bodies[0]) == len(bodies[1])
    same = sum(a == b for a, b in zip(*bodies, strict=True) if a or b)
    assert same < len(bodies[0]) // 100


@pytest.mark.parametrize(
    "other",
    [{"keys": [OTHER]}, {"space": "umbrella"}, {"pool": "other"}, {"keys": ()}],
    ids=["key", "cache namespace", "pool", "none"],
)
def test_a_file_of_others_is_put_aside_and_never_served(disk: DiskSlab, other: dict[str, object]) -> None:
    disk.keep(CHAIN)
    then = disk.again(**other)
    assert (then.tier.status().state, then.tier.status().blocks, put_aside(then)) == ("ready", 0, (1, 0, 1))
    assert (then.stored(CHAIN), then.load(CHAIN), then.right(CHAIN)) == ([False] * 6, "", [False] * 6)
    then.keep([11])  # and is none in the way
    assert then.stored([11]) == [True]
    then.close()


def test_a_file_in_clear_is_removed_where_files_are_sealed(tmp_path: Path) -> None:
    clear = DiskSlab(tmp_path).start()
    clear.keep(CHAIN)
    then = clear.again(keys=[OLD])
    assert (then.counters["disk_foreign_files"], then.tier.status().files, then.files("*")) == (
        1,
        0,
        [tmp_path / FOLDER / "lock"],
    )
    then.close()


def test_a_file_in_place_of_another_is_put_aside(disk: DiskSlab) -> None:
    disk.keep([1])
    disk.keep([2])
    disk.drop([1, 2])
    a, b = (file.read_bytes() for file in disk.files())
    for file, body in zip(disk.files(), (b, a), strict=True):
        file.write_bytes(body)
    assert disk.load([1, 2]) == "disk_failed"
    assert (disk.right([1, 2]), disk.counters["disk_damaged_files"]) == ([False] * 2, 2)
    assert disk.no_slot_is_lost()


def test_a_key_s_files_serve_while_it_is_accepted_and_are_removed_with_it(disk: DiskSlab) -> None:
    disk.keep(CHAIN)
    disk.drop(CHAIN)
    disk.take(OLD, NEW)
    assert (disk.load(CHAIN), disk.right(CHAIN)) == ("", [True] * 6)
    disk.drop(CHAIN)
    disk.take(NEW, OLD)
    disk.keep([11])
    assert (disk.load(CHAIN), disk.right(CHAIN)) == ("", [True] * 6)

    then = disk.again(keys=[NEW, OLD])  # both epochs' files are found
    assert then.counters["disk_recovered_blocks"] == 7
    assert (then.load([*CHAIN, 11]), then.right([*CHAIN, 11])) == ("", [True] * 7)
    then.drop([*CHAIN, 11])
    then.take(NEW)
    assert then.stored([*CHAIN, 11]) == [False] * 6 + [True]  # at once
    wait_until(lambda: put_aside(then) == (1, 1, 0), "the file of the key that is gone is gone")
    assert then.tier.status().used_bytes == then.files()[0].stat().st_size
    assert (then.load([*CHAIN, 11]), then.right([*CHAIN, 11])) == ("", [False] * 6 + [True])
    then.close()


def test_after_a_rotation_that_nobody_saw_the_old_files_make_room(disk: DiskSlab) -> None:
    for n in range(20, 28):
        disk.keep([n])
    then = disk.again(keys=[NEW])
    assert put_aside(then) == (8, 0, scan.BAD_KEPT)
    then.close()


def test_a_key_that_comes_late_opens_what_lies_there(disk: DiskSlab) -> None:
    """As long as it is not there the file may be its own: it stays, and serves nobody."""
    disk.keep(CHAIN)
    disk.close()
    then = disk.beside()
    then.keyring.default.take(())
    then.start()
    assert (then.tier.status().state, put_aside(then), then.stored(CHAIN)) == ("ready", (1, 1, 0), [False] * 6)
    then.take(OLD)
    wait_until(lambda: all(then.stored(CHAIN)), "it was looked for anew")
    assert (then.load(CHAIN), then.right(CHAIN), len(then.files())) == ("", [True] * 6, 1)
    then.close()
