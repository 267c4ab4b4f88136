"""Blocks under the names of another epoch of their key: found here and elsewhere, and named anew."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from local_member import FORMAT, WAIT, LocalMember, until
from tenant_keys import ACME, ACME_ID, NEXT, PUBLIC, acme, keyring

from kvpool_agent.flows.epochs import name_anew, named, named_chains
from kvpool_agent.flows.request import Request
from kvpool_agent.policy.boundary import NO_LIMIT, Blocks
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of
from kvpool_client.groups import FULL, Group

HASHES = [bytes([n]) * 32 + bytes(4) for n in range(6)]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[LocalMember, LocalMember]]:
    """Two members in the middle of a rotation: both hold both keys."""
    (tmp_path / "members").touch()
    made = [
        LocalMember(name, tmp_path / "members", keyring=keyring(tmp_path, name, public=[PUBLIC], acme=[NEXT, ACME]))
        for name in "ab"
    ]
    for one in made:
        one.start()
    a, b = made
    until("they see each other", lambda: all(len(one.members.live(FORMAT)) == 1 for one in made))
    yield a, b
    for one in made:
        one.kill()


def content(n: int) -> bytes:
    return bytes([n]) * 64


def put(slab: Slab, blocks: Sequence[int], epoch: int) -> list[bytes]:
    """Stores these blocks of the chain under the names of an epoch (0: of now)."""
    names = [slab.key(key, 32, slab.space.names[epoch]) for key in HASHES]
    for n in blocks:
        (slot,) = slab.arena.reserve(1, time.monotonic())
        slab.view(slot)[:] = content(n)
        tag = tag_of(names[n], slab.view(slot))
        slab.arena.commit(names[n], names[n - 1] if n else b"", slot, tag, foreign=False)
    return names


def load(member: LocalMember) -> int:
    """Plans a request for the whole chain; how many of its blocks lie ready, all with their own bytes."""
    slab = acme(member)
    now, others = named_chains(slab, [HASHES], 32)
    blocks = [Blocks(Group(0, FULL, 0, 1), [True] * len(HASHES))]
    hits, lease = member.lookup.plan(slab, Request(blocks, now, NO_LIMIT, others=others), time.monotonic() + WAIT)
    _, held = slab.arena.lease([now[0][i] for i in hits[0]], time.monotonic(), WAIT)
    for i, block in zip(hits[0], held, strict=True):
        assert block is not None and bytes(slab.view(block.slot)) == content(i)
    slab.arena.release(lease)
    return len(hits[0])


def test_names_of_one_epoch_say_nothing_of_anothers(two: tuple[LocalMember, LocalMember]) -> None:
    slab = acme(two[0])
    now, others = named_chains(slab, [HASHES], 32)
    assert not set(now[0]) & set(others[0])
    assert {slab.key(key, 32) for key in HASHES} == set(now[0])


def test_what_lies_here_under_the_former_key_is_named_anew_and_lies_here_once(
    two: tuple[LocalMember, LocalMember],
) -> None:
    slab = acme(two[0])
    old = put(slab, range(6), epoch=1)
    now, _ = named_chains(slab, [HASHES], 32)
    assert named(slab, HASHES, 32) == old
    assert name_anew(slab, now[0], old, linked=True) == 6
    assert (slab.arena.held(now[0]), slab.arena.held(old), slab.arena.used_slots) == ([True] * 6, [False] * 6, 6)
    assert named(slab, HASHES, 32) == now[0] and slab.arena.orphan_blocks == 0
    assert name_anew(slab, now[0], old, linked=True) == 0


def test_a_chain_in_names_of_both_epochs_here_and_elsewhere_is_loaded_whole(
    two: tuple[LocalMember, LocalMember],
) -> None:
    a, b = two
    put(acme(a), [0, 1, 2], epoch=1)
    put(acme(a), [5], epoch=0)
    put(acme(b), [3], epoch=1)
    put(acme(b), [0, 4], epoch=0)
    assert load(b) == 6
    assert b.account.counters["renamed_blocks"] == 3  # one that lay here, two that came
    assert load(b) == 6 and b.account.counters["renamed_blocks"] == 3
    assert load(a) == 6


def test_what_has_changed_in_memory_is_not_given_a_new_tag(two: tuple[LocalMember, LocalMember]) -> None:
    slab = acme(two[0])
    old = put(slab, range(2), epoch=1)
    lease, (held,) = slab.arena.lease([old[1]], time.monotonic(), WAIT)
    slab.arena.release(lease)
    assert held is not None
    slab.view(held.slot)[3] ^= 1
    assert name_anew(slab, named_chains(slab, [HASHES], 32)[0][0], old, linked=True) == 1
    assert slab.arena.held(old) == [False] * 6


def test_a_key_that_is_taken_out_of_the_file_takes_its_blocks_along(
    two: tuple[LocalMember, LocalMember], tmp_path: Path
) -> None:
    a, b = two
    put(acme(a), range(6), epoch=1)
    for member in two:
        (tmp_path / member.uid / "acme").write_bytes((tmp_path / member.uid / "acme").read_bytes().split()[0])
        member.slabs._keyring.look()
    assert load(b) == load(a) == 0
    assert b.locator.holders(FORMAT, [HASHES], time.monotonic() + WAIT, in_groups=False, slab=ACME_ID).held == [{}]
