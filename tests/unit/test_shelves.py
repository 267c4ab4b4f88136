"""What each cache namespace has of the disk: a part of the quota that no other one writes into."""

import pytest

from kvpool_agent.keyring import Keyring, Space
from kvpool_agent.store.disk.folder import Found
from kvpool_agent.store.disk.header import DEFAULT_NAMESPACE, Entry, ExtentHeader
from kvpool_agent.store.disk.shelf import Shelves
from kvpool_agent.store.heads import Heads
from kvpool_agent.store.sealing import Seal
from kvpool_contract.config import CacheNamespace


@pytest.fixture
def shelves() -> Shelves:
    """`public` has what `acme` and `umbrella` leave of the quota."""
    ring = Keyring()
    parts = {"public": 0, "acme": 30, "umbrella": 10}
    ring.spaces = [Space(CacheNamespace(name=n, keyFile="", memoryPercent=percent)) for n, percent in parts.items()]
    for space in ring.spaces:
        space.take([space.name.encode().ljust(32)])
    made = Shelves(ring, Heads())
    made.begin(b"f" * 16, 1000)
    return made


def header(shelves: Shelves, number: int, name: str) -> ExtentHeader:
    seal = Seal(list(shelves)[number].keys[0], b"")
    return ExtentHeader(b"f" * 16, 100, (Entry(name.encode().ljust(16), b"", bytes(16)),), DEFAULT_NAMESPACE, seal)


def test_what_one_writes_makes_no_others_files_go(shelves: Shelves) -> None:
    public, acme, umbrella = shelves
    assert [shelf.index.limit for shelf in shelves] == [600, 300, 100]
    for name, size, number in (("p", 600, 0), ("a1", 200, 1), ("a2", 100, 1), ("u", 100, 2)):
        shelves.add(Found(name, size, 0), header(shelves, number, name))
    assert [shelf.index.used for shelf in shelves] == [600, 300, 100]
    assert acme.index.make_room(50) == ["a2"]
    assert acme.index.make_room(250) == ["a1"]
    assert (public.index.used, umbrella.index.used) == (600, 100)


def test_what_is_nobody_s_is_in_the_way_of_the_default_one_alone(shelves: Shelves) -> None:
    public, acme, _ = shelves
    shelves.add(Found("a", 300, 0), header(shelves, 1, "a"))
    shelves.add(Found("bad-1", 500, 0), None)
    assert (public.index.used, acme.index.used, shelves.used) == (500, 300, 800)
    assert acme.index.make_room(0) == []
    assert public.index.make_room(200) == ["bad-1"]


def test_a_full_volume_leaves_each_what_it_has(shelves: Shelves) -> None:
    shelves.add(Found("a", 250, 0), header(shelves, 1, "a"))
    shelves.limit_to_used()
    assert [shelf.index.limit for shelf in shelves] == [0, 250, 0]


def test_an_epoch_that_ends_takes_its_files_along(shelves: Shelves) -> None:
    _, acme, _ = shelves
    old = header(shelves, 1, "old")
    space = acme._space
    assert not acme.keys_changed()
    space.take([b"n" * 32, b"acme".ljust(32)])
    acme.index.add("old", 100, old)
    acme.index.add("new", 100, header(shelves, 1, "new"))
    assert (acme.keys_changed(), acme.give_up_unopened()) == (True, [])
    space.take([b"n" * 32])
    assert (acme.keys_changed(), acme.give_up_unopened(), acme.index.used) == (True, ["old"], 100)
    assert not acme.keys_changed()
