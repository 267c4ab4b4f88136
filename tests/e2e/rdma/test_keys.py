"""A key opens one slab, to those who are entitled to it, for as long as they are."""

import base64
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rdma.member import POOL, SLOT, RdmaMember, bytes_of, chain, members, read, until
from tenant_keys import ACME, NEXT, PUBLIC, keyring

from kvpool_agent.keyring import Keyring
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.peer.lending import Joined
from kvpool_agent.peer.rdma.transport import Link
from kvpool_agent.peer.rdma.words import RdmaError
from kvpool_agent.store.slab import Slab

SECONDS = 20.0


def joined(reader: RdmaMember, other: RdmaMember) -> Link:
    """The queue pair of the connection on which the next request goes."""
    with reader.dialer.asking(other.address, other.slab.id, SECONDS) as connection:
        return reader.link(connection)


def test_a_wrong_key_is_refused_and_a_new_queue_pair_reads_at_once(devices: tuple[str, str]) -> None:
    with members(RdmaMember("a", devices[:1]), RdmaMember("b", devices[1:])) as (a, b):
        keys = chain("one", 4)
        a.store(keys)
        a.until_ready(), b.until_ready()
        with b.dialer.asking(a.address, a.slab.id, SECONDS) as connection:
            link = b.link(connection)
            read(link)
            assert bytes(b.slab.view(0)) == bytes_of(keys[0])
            wrong = replace(link, there=replaced(link, key=link.there.key ^ 0x5500))
            with pytest.raises(RdmaError, match="rdma_refused"):
                read(wrong)
            with pytest.raises(RdmaError, match="rdma_withdrawn"):  # the queue pair is gone
                read(link)
        b.dialer.drop_idle(a.address)
        assert b.fetch(a, keys) == ""
        assert (b.holds(keys), b.moved("rdma_in")[0]) == (4, 4)


def test_nothing_beyond_a_slab_can_be_read(devices: tuple[str, str]) -> None:
    with members(RdmaMember("a", devices[:1]), RdmaMember("b", devices[1:])) as (a, b):
        a.until_ready(), b.until_ready()
        with b.dialer.asking(a.address, a.slab.id, SECONDS) as connection:
            link = b.link(connection)
            read(link, link.there.length - SLOT)
            with pytest.raises(RdmaError, match="rdma_refused"):
                read(link, link.there.length - SLOT + 1)


def test_a_key_from_before_the_slab_was_registered_anew_opens_nothing_and_the_request_goes_on(
    devices: tuple[str, str],
) -> None:
    with members(RdmaMember("a", devices[:1]), RdmaMember("b", devices[1:])) as (a, b):
        keys = chain("one", 8)
        a.store(keys)
        a.until_ready(), b.until_ready()
        assert b.fetch(a, keys[:4]) == ""
        before = joined(b, a).there.key
        (nic,) = a.rdma._nics.values()
        with a.rdma._lock:
            a.rdma._regions.clear()  # the next turn makes them anew
        until("another key", lambda: len(a.rdma._regions) == 1)
        assert nic.alive
        assert b.fetch(a, keys) == ""
        assert (b.holds(keys), b.moved("demand_in")[0]) == (8, 8)
        assert sum(b.counted("fallback").values()) == 1
        # what is refused is the key, on a queue pair that the right one reads by
        link = joined(b, a)
        assert link.there.key != before
        read(link)
        with pytest.raises(RdmaError, match="rdma_refused"):
            read(replace(link, there=replaced(link, key=before)))
        b.dialer.drop_idle(a.address)
        # after a pause it is read by RDMA again
        more = chain("two", 4)
        a.store(more)
        until("the pause is over", lambda: b.rdma.peers.why(a.address) is None)
        before = b.moved("rdma_in")[0]
        assert b.fetch(a, more) == ""
        assert (b.holds(more), b.moved("rdma_in")[0] - before) == (4, 4)


def test_a_member_that_has_lost_its_right_reads_nothing_with_what_it_has_learnt(
    devices: tuple[str, str], tmp_path: Path
) -> None:
    def keys_of(name: str) -> Keyring:
        return keyring(tmp_path, name, public=[PUBLIC], acme=[ACME])

    of_a = keys_of("a")
    made = RdmaMember("a", devices[:1], keyring=of_a), RdmaMember("b", devices[1:], keyring=keys_of("b"))
    with members(*made) as (a, b):
        theirs, ours = tenants(a), tenants(b)
        keys = chain("one", 4)
        a.store(keys, theirs)
        a.until_ready(), b.until_ready()
        connection, _ = Dialer(Identity(POOL, "nobody", "1")).handshake(a.address)
        with pytest.raises(RdmaError, match="rdma_peer_without: rdma_withdrawn"):  # nothing was proved on it
            b.link(connection, ours)
        connection.close()
        assert b.fetch(a, keys, slab=ours) == ""
        assert (b.holds(keys, ours), b.moved("rdma_in")[0]) == (4, 4)
        with b.dialer.asking(a.address, ours.id, SECONDS) as connection:
            learnt = b.link(connection, ours)
            read(learnt)
            public = b.link(connection)
            read(public)
            # a queue pair of one slab opens no other, though the key is right
            with pytest.raises(RdmaError, match="rdma_refused"):
                read(replace(public, there=learnt.there))
            (tmp_path / "a" / "acme").write_bytes(base64.b64encode(NEXT))
            of_a.look()
            until("its key is another one", lambda: a.account.counters.get("rdma_keys_changed"))
            with pytest.raises(RdmaError):
                read(learnt)
        more = chain("two", 2)
        a.store(more, theirs)
        b.dialer.drop_idle(a.address)
        assert b.fetch(a, more, slab=ours) != ""
        assert b.holds(more, ours) == 0


def tenants(member: RdmaMember) -> Slab:
    return next(slab for slab in member.slabs.all if slab.space.name == "acme")


def replaced(link: Link, **fields: int) -> Joined:
    return msgspec.structs.replace(link.there, **fields)
