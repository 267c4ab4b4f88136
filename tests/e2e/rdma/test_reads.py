"""Blocks go from arena to arena by RDMA, checked by their tags, whatever the connection between the agents is."""

import time
from types import SimpleNamespace

import pytest
from authority import Authority
from rdma.member import FORMAT, SLOT, RdmaMember, chain, members
from trusted import transport

from kvpool_agent.peer.rdma import requests as say
from kvpool_agent.peer.rdma.nic import Nic
from kvpool_agent.peer.tls import CLEAR

BLOCKS = 48
LOT = 4  # that an arena of this size lends at a time


@pytest.mark.parametrize("secured", [False, True], ids=["in clear", "TLS"])
def test_blocks_are_read_from_arena_to_arena_and_none_of_their_bytes_goes_by_the_connection(
    devices: tuple[str, str], secured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths, ask = list[int](), Nic.ask

    def noting(self: Nic, request: say.AnyRequest, *others: object) -> object:
        if getattr(request, "func", None) is say.Read:
            lengths.extend(size for _, _, size in request.keywords["segments"])  # type: ignore[attr-defined]
        return ask(self, request, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(Nic, "ask", noting)
    signers = SimpleNamespace(authority=Authority(), tls=secured)
    of_a, of_b = (transport(signers, uid) if secured else CLEAR for uid in "ab")  # type: ignore[arg-type]
    made = RdmaMember("a", devices[:1], transport=of_a), RdmaMember("b", devices[1:], transport=of_b)
    with members(*made) as (a, b):
        keys = chain("one", BLOCKS)
        a.store(keys)
        a.until_ready(), b.until_ready()
        assert b.fetch(a, keys) == ""
        assert b.holds(keys) == BLOCKS
        assert b.moved("demand_in") == b.moved("rdma_in") == (BLOCKS, BLOCKS * SLOT)
        assert a.moved("demand_out") == a.moved("rdma_out") == (BLOCKS, BLOCKS * SLOT)
        assert (b.counted("fallback"), b.counted("tag")) == ({}, {})
        (connection,) = b.dialer._idle[a.address]
        assert connection.moved < SLOT
        # of what is lent at a time all is read as one, since it lies one after another
        assert lengths == [LOT * SLOT] * (BLOCKS // LOT)


def test_a_member_that_uses_tcp_alone_is_read_by_tcp_and_its_reason_is_told(devices: tuple[str, str]) -> None:
    with members(RdmaMember("a", (), kind="TCP"), RdmaMember("b", devices[1:])) as (a, b):
        keys = chain("one", 8)
        a.store(keys)
        b.until_ready()
        assert b.fetch(a, keys) == ""
        assert b.holds(keys) == 8
        assert (b.moved("demand_in")[0], b.moved("rdma_in")) == (8, (0, 0))
        assert b.counted("fallback") == {"fallback_rdma_peer_without": 1}
        assert b.rdma.why_not(a.address) == "rdma_peer_without: rdma_off"


def test_what_is_lent_is_not_evicted_while_it_is_read(
    devices: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment before each read everything that can be evicted there is."""
    slots = 32
    with members(RdmaMember("a", devices[:1], slots), RdmaMember("b", devices[1:])) as (a, b):
        keys = chain("one", 1)
        a.store(keys)
        a.store(chain("others", slots - 1))
        a.until_ready(), b.until_ready()
        reserved: list[int] = []
        ask = Nic.ask

        def evicting(self: Nic, request: say.AnyRequest, *others: object) -> object:
            if getattr(request, "func", None) is say.Read:
                taken = a.slab.arena.reserve(slots, time.monotonic())
                reserved.append(len(taken))
                for slot in taken:
                    a.slab.view(slot)[:] = b"\xee" * SLOT
                a.slab.arena.give_back(taken)
            return ask(self, request, *others)  # type: ignore[arg-type]

        monkeypatch.setattr(Nic, "ask", evicting)
        assert b.fetch(a, keys) == ""
        assert (reserved, b.holds(keys), b.moved("rdma_in")[0]) == ([slots - 1], 1, 1)
        assert a.slab.arena.held(keys) == [True]


def test_bytes_that_change_under_a_read_are_told_by_their_tag_and_never_published(
    devices: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with members(RdmaMember("a", devices[:1]), RdmaMember("b", devices[1:])) as (a, b):
        keys = chain("one", 4)
        a.store(keys)
        a.until_ready(), b.until_ready()
        ask = Nic.ask

        def altering(self: Nic, request: say.AnyRequest, *others: object) -> object:
            if getattr(request, "func", None) is say.Read:
                _, held = a.slab.arena.lease(keys[:1], time.monotonic(), 1.0)
                assert held[0] is not None
                a.slab.view(held[0].slot)[0] ^= 1
            return ask(self, request, *others)  # type: ignore[arg-type]

        monkeypatch.setattr(Nic, "ask", altering)
        # over TCP the source finds the altered block itself, and drops it
        assert b.fetch(a, keys) == "evicted"
        assert b.slab.arena.held(keys) == [False, True, True, True]
        assert b.holds(keys) == 3
        assert (b.counted("fallback"), b.moved("rdma_in")) == ({"fallback_rdma_tag": 1}, (0, 0))
        assert a.slab.arena.held(keys) == [False, True, True, True]


def test_a_member_that_has_left_out_a_block_has_it_counted_as_evicted(devices: tuple[str, str]) -> None:
    with members(RdmaMember("a", devices[:1]), RdmaMember("b", devices[1:])) as (a, b):
        keys = chain("one", 6)
        a.store(keys)
        a.slab.arena.drop(keys[2])
        a.until_ready(), b.until_ready()
        assert b.fetch(a, keys) == "evicted"
        assert (b.holds(keys), b.moved("rdma_in")[0]) == (5, 5)
        assert b.slab.arena.held(keys) == [True, True, False, True, True, True]


def test_a_slab_whose_engine_has_failed_its_probe_can_be_read_no_more(devices: tuple[str, str]) -> None:
    with members(RdmaMember("a", devices[:1]), RdmaMember("b", devices[1:])) as (a, b):
        keys = chain("one", 8)
        a.store(keys)
        a.until_ready(), b.until_ready()
        assert b.fetch(a, keys[:4]) == ""
        a.probe.withdrawn = True
        a.until_withdrawn()
        assert b.fetch(a, keys) != ""
        assert (b.holds(keys), b.moved("rdma_in")[0]) == (4, 4)
        b.dialer.drop_idle(a.address)
        with b.dialer.asking(a.address, FORMAT, 10.0) as connection, pytest.raises(Exception, match="rdma_withdrawn"):
            b.link(connection)
