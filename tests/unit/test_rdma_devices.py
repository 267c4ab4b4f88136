"""Which devices an agent uses and what is said of the others; whose fault keeps a member from being read by RDMA."""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from replica import wait_for

from kvpool_agent.account import Account
from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import Connection, PeerError
from kvpool_agent.peer.lending import End, Joined
from kvpool_agent.peer.rdma import nic as nics
from kvpool_agent.peer.rdma import requests as say
from kvpool_agent.peer.rdma.nic import NicLost
from kvpool_agent.peer.rdma.reader import Reader
from kvpool_agent.peer.rdma.transport import Rdma
from kvpool_agent.peer.rdma.words import RdmaError
from kvpool_agent.store.arena import Arena
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slab
from kvpool_contract import config

SLOT, SLOTS = 4096, 4
END = End(1, 2, bytes(15) + b"\1", 4096, 16)
OTHERS = [End(1, 2, bytes(15) + bytes([n]), 4096, 16) for n in (7, 8)]


class Node:
    """A node's devices; `wrong`: what is the matter with one of them, or with a kind of request to it."""

    def __init__(self, *there: str) -> None:
        self.there, self.wrong = list(there), dict[str, RdmaError]()
        self.looks = 0
        self.nics: dict[str, Nic] = {}

    def look(self) -> list[str]:
        self.looks += 1
        return self.there


class Nic:
    """A device's process that does at once what it is asked for."""

    def __init__(self, node: Node, name: str) -> None:
        self.node, self.name, self.alive = node, name, True
        self.in_flight, self.queue_pairs = 0, 0
        self.seen = say.Seen(0, f"address of {name}", 4096, 0, 0)
        self.dropped, self.asked, self.made = list[int](), list[str](), 0
        node.nics[name] = self

    def start(self) -> None:
        self.look(0.0)

    def look(self, seconds: float) -> None:
        if self.name in self.node.wrong:
            raise self.node.wrong[self.name]

    def ask(self, request: Callable[[int], say.AnyRequest], answer: Any, seconds: float) -> Any:
        made = request(1)
        kind = type(made).__name__
        if kind != "Withdraw":
            self.asked.append(kind)
        if kind in self.node.wrong:
            raise self.node.wrong[kind]
        if isinstance(made, say.Register):
            return say.Registered(1, 1 << 20, 77, 0.25)
        if isinstance(made, say.Create):
            self.made += 1
            return say.Created(1, self.made, END)
        return say.Done(1)

    def drop(self, link: int) -> None:
        self.dropped.append(link)

    def close(self, why: RdmaError | None = None) -> None:
        self.alive = False


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node("one", "two")
    monkeypatch.setattr(nics, "look", made.look)
    monkeypatch.setattr(nics, "Nic", lambda name, arena: Nic(made, name))
    return made


class Member:
    """An agent's RDMA with one slab."""

    def __init__(self, *devices: str, encrypted: bool = False, allowed: bool = False) -> None:
        """allowed: to read by RDMA, which encrypts nothing, where members encrypt what they send."""
        self.account, self.memory = Account(), ArenaMemory.anonymous(SLOTS * SLOT)
        self.slab = Slab(b"f" * 16, {}, SLOT, self.memory, Arena(SLOTS))
        told = config.AgentConfig(
            version=1, pool="p", arenaBytes=self.memory.size, members=config.Members(file="none"),
            tls=config.Tls(mode="Files" if encrypted else "Disabled"),
            transport=config.Transport(rdma=config.Rdma(devices=devices, allowUnencrypted=allowed)),
        )  # fmt: skip
        self.rdma = Rdma(told, self.memory, lambda: [self.slab], self.account)

    def turn(self) -> None:
        self.rdma._find()
        for name, nic in list(self.rdma._nics.items()):
            self.rdma._keep(name, nic)

    @property
    def devices(self) -> list[tuple[str, str, str]]:
        return sorted((one.name, one.state, one.reason) for one in self.rdma.snapshot().devices)


def test_a_named_device_that_is_absent_is_told_and_the_others_are_used(node: Node) -> None:
    member = Member("one", "three")
    member.turn()
    assert member.devices == [("one", "ready", ""), ("three", "failed", "rdma_no_device")]
    told = member.rdma.snapshot()
    assert (told.in_use, told.reason) == ("RDMA", "")
    assert [one.detail for one in told.devices if one.name == "three"] == ["there is one, two, and not three"]
    for _ in range(10):
        member.turn()
    assert (node.looks, member.account.counters) == (1, {"device_rdma_no_device": 1})


def test_where_no_named_device_is_there_that_is_why_none_is_used(node: Node) -> None:
    member = Member("three", "four")
    member.turn()
    told = member.rdma.snapshot()
    assert (told.in_use, told.reason) == ("TCP", "rdma_no_device")
    assert member.devices == [("four", "failed", "rdma_no_device"), ("three", "failed", "rdma_no_device")]
    assert member.account.counters == {"device_rdma_no_device": 2}


def test_an_absent_device_does_not_hide_what_is_wrong_with_the_one_that_is_there(node: Node) -> None:
    node.wrong["one"] = RdmaError("rdma_port_down")
    member = Member("one", "three")
    member.turn()
    member.rdma._devices.forget("three")  # its pause is over
    member.turn()
    assert member.account.counters == {"device_rdma_port_down": 1, "device_rdma_no_device": 2}
    assert member.rdma.snapshot().reason == "rdma_port_down"
    assert member.devices == [("one", "failed", "rdma_port_down"), ("three", "failed", "rdma_no_device")]


def test_a_device_that_fails_is_left_and_the_other_one_goes_on_and_it_comes_back(node: Node) -> None:
    member = Member()
    member.turn()
    first, second = node.nics["one"], node.nics["two"]
    node.wrong["two"] = RdmaError("rdma_port_down")
    member.turn()
    assert (first.alive, second.alive) == (True, False)
    with member.rdma.reading(member.slab, SLOT) as one, member.rdma.reading(member.slab, SLOT) as other:
        assert one is other is first
    assert member.devices == [("one", "ready", ""), ("two", "failed", "rdma_port_down")]
    del node.wrong["two"]
    member.turn()
    assert node.nics["two"] is second  # its pause is not over
    member.rdma._devices._known["two"] = (0.0, 1.0, RdmaError("rdma_port_down"))
    member.turn()
    again = node.nics["two"]
    with member.rdma.reading(member.slab, SLOT) as one, member.rdma.reading(member.slab, SLOT) as other:
        assert (one, other) == (first, again)
    assert member.account.counters == {"device_rdma_port_down": 1}


def test_reads_go_to_the_device_with_the_least_on_its_way_and_queue_pairs_to_the_one_with_the_fewest(
    node: Node, pair: tuple[Connection, Connection]
) -> None:
    member = Member()
    member.turn()
    first, second = node.nics["one"], node.nics["two"]
    with member.rdma.reading(member.slab, 3 * SLOT) as one, member.rdma.reading(member.slab, SLOT) as other:
        assert (one, other, first.in_flight, second.in_flight) == (first, second, 3 * SLOT, SLOT)
        with member.rdma.reading(member.slab, SLOT) as third:
            assert third is second
    assert (first.in_flight, second.in_flight) == (0, 0)
    for number in range(5):
        member.rdma.join(pair[0], member.slab, End(1, 2, bytes(15) + bytes([number]), 4096, 16))
    assert (first.queue_pairs, second.queue_pairs) == (3, 2)
    node.wrong["Connect"] = RdmaError("rdma_failed")
    with pytest.raises(RdmaError):
        member.rdma.join(pair[0], member.slab, OTHERS[0])
    assert (first.queue_pairs, second.queue_pairs, second.dropped) == (3, 2, [3])
    pair[0].close()
    assert (first.queue_pairs, second.queue_pairs) == (0, 0)


# -- queue pairs of a connection ---------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[Connection, Connection]]:
    ours, theirs = (Connection(sock) for sock in socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def test_a_connection_has_a_queue_pair_for_each_device_of_the_reader(
    node: Node, pair: tuple[Connection, Connection]
) -> None:
    member, connection = Member("one"), pair[0]
    member.turn()
    nic = node.nics["one"]
    for other in (*OTHERS, OTHERS[0]):
        member.rdma.join(connection, member.slab, other)
    assert nic.dropped == [1]  # the third has taken the first one's place
    assert member.rdma._opened == {connection}
    connection.close()
    assert (sorted(nic.dropped), member.rdma._opened) == ([1, 2, 3], set())


def test_a_queue_pair_that_takes_anothers_place_ends_with_the_certificate_all_the_same(
    node: Node, pair: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    member, connection = Member("one"), pair[0]
    member.turn()
    for _ in range(2):
        member.rdma.join(connection, member.slab, OTHERS[0])
    monkeypatch.setattr(Connection, "expired", property(lambda _: True))
    member.rdma._end_expired()
    assert node.nics["one"].dropped == [1, 2]


def test_a_connection_that_was_closed_meanwhile_leaves_nothing_behind(
    node: Node, pair: tuple[Connection, Connection]
) -> None:
    member, connection = Member("one"), pair[0]
    member.turn()
    connection.close()
    with pytest.raises(PeerError, match="closed"):
        member.rdma.join(connection, member.slab, OTHERS[0])
    assert (node.nics["one"].dropped, member.rdma._opened) == ([1], set())


# -- whose fault it is -------------------------------------------------------------------------------


class Dialer:
    """Whose connection can be asked: the other side of it answers a join by itself, or refuses it."""

    def __init__(self, pair: tuple[Connection, Connection], answer: Any) -> None:
        self.connection, self._theirs, self._answer = *pair, answer
        self.asked = 0
        self.connection.version = frames.LENDING_VERSION

    def asking(self, address: str, slab: bytes, seconds: float) -> "Dialer":
        self.asked += 1
        self._theirs.send(self._answer)
        return self

    def __enter__(self) -> Connection:
        self.connection.settimeout(10)
        return self.connection

    def __exit__(self, *_: object) -> None:
        pass


JOINED = Joined(END, 0, SLOTS * SLOT, 5)


def fetched(member: Member, dialer: Dialer) -> str:
    reader = Reader(member.rdma, dialer, member.account)  # type: ignore[arg-type]
    with pytest.raises(RdmaError) as error:
        reader.fetch(
            member.slab, "peer", [b"k" * 16], "demand", time.monotonic() + 20, [0], lambda: None, lambda *_: None
        )
    return error.value.reason


OWN: Sequence[tuple[str, RdmaError, str]] = [
    ("Create", RdmaError("rdma_memlock"), "rdma_memlock"),
    ("Create", RdmaError("rdma_withdrawn"), "rdma_withdrawn"),
    ("Create", NicLost("rdma_process_ended", "", safe=True), "rdma_process_ended"),
    ("Connect", NicLost("rdma_port_down", "", safe=True), "rdma_port_down"),
]


@pytest.mark.parametrize(("asked", "error", "told"), OWN)
def test_a_fault_of_this_side_is_not_the_members(
    node: Node, pair: tuple[Connection, Connection], asked: str, error: RdmaError, told: str
) -> None:
    member = Member("one")
    member.turn()
    node.wrong[asked] = error
    assert fetched(member, Dialer(pair, JOINED)) == told
    assert member.rdma.peers.failures() == []


def test_a_member_that_refuses_or_is_not_reached_is_left_alone(node: Node, pair: tuple[Connection, Connection]) -> None:
    member = Member("one")
    member.turn()
    assert fetched(member, Dialer(pair, frames.Refused("rdma_off"))) == "rdma_peer_without"
    assert member.rdma.peers.why("peer") is not None
    member.rdma.peers.forget("peer")
    node.wrong["Connect"] = RdmaError("rdma_failed", "no route")
    assert fetched(member, Dialer(pair, JOINED)) == "rdma_unreachable"
    assert [(name, str(why)) for name, why in member.rdma.peers.failures()] == [("peer", "rdma_unreachable: no route")]


@pytest.mark.parametrize(("asked", "reason"), [("Connect", "rdma_unreachable"), ("Create", "rdma_failed")])
def test_nobody_is_reached_over_a_port_that_is_down_and_that_is_no_members_fault(
    node: Node, pair: tuple[Connection, Connection], asked: str, reason: str
) -> None:
    member = Member("one")
    member.turn()
    node.wrong |= {asked: RdmaError(reason), "one": RdmaError("rdma_port_down")}
    assert fetched(member, Dialer(pair, JOINED)) == "rdma_port_down"
    assert member.rdma.peers.failures() == []


def test_a_slab_that_no_device_has_registered_is_not_tried_and_the_member_not_asked(
    node: Node, pair: tuple[Connection, Connection]
) -> None:
    member, dialer = Member("one"), Dialer(pair, JOINED)
    reader = Reader(member.rdma, dialer, member.account)  # type: ignore[arg-type]
    assert not reader.ready(member.slab, "demand")
    member.turn()
    assert reader.ready(member.slab, "demand") and not reader.ready(member.slab, "probe")
    node.wrong["Register"] = RdmaError("rdma_memlock")
    with member.rdma._lock:
        member.rdma._regions.clear()
    assert not reader.ready(member.slab, "demand")
    assert fetched(member, dialer) == "rdma_looking"
    assert (dialer.asked, member.rdma.peers.failures()) == (0, [])


def test_where_members_encrypt_no_device_is_looked_for_unless_it_is_allowed(node: Node) -> None:
    refused = Member(encrypted=True)
    refused.rdma.start()
    told = refused.rdma.snapshot()
    assert (told.in_use, told.reason, node.looks) == ("TCP", "rdma_unencrypted", 0)
    assert not refused.rdma.ready(refused.slab)
    for member in (Member(encrypted=True, allowed=True), Member()):
        member.rdma.start()
        wait_for("it is ready", lambda member=member: member.rdma.ready(member.slab), 10, 0.01)
        assert (member.rdma.snapshot().in_use, member.rdma.snapshot().reason) == ("RDMA", "")
        member.rdma.close()
