"""A network that loses packets, links that go down, members that are killed: what was asked for comes all the same."""

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from rdma.cable import SLOW, disturbed, link_down, lost, network_of, objects, packets_of, received
from rdma.member import SLOT, RdmaMember, alone, chain, fetching, members, read, until, until_reading
from replica import wait_for

from kvpool_agent.peer import shares
from kvpool_contract.status import Transport

SLOTS = 512
# `make soak` has them all
CONNECTIONS, BEFORE = int(os.environ.get("KVPOOL_RDMA_CONNECTIONS", "100")), 50
SECONDS = 20.0
Pair = tuple[RdmaMember, RdmaMember]


@pytest.fixture(scope="module")
def pair(devices: tuple[str, str]) -> Iterator[Pair]:
    """a, which is read from, and b, which reads."""
    made = RdmaMember("a", devices[:1], SLOTS), RdmaMember("b", devices[1:], SLOTS)
    with members(*made) as (a, b):
        yield a, b


@pytest.fixture(autouse=True)
def fresh(pair: Pair) -> None:
    for member in pair:
        member.until_ready()
        member.account._counters.clear()
        member.account._transfers.clear()
    pair[1].rdma.peers.forget(pair[0].address)


def test_with_lost_and_overtaking_packets_every_block_comes_by_rdma(pair: Pair, devices: tuple[str, str]) -> None:
    a, b = pair
    keys = chain("lossy", 128)
    a.store(keys)
    how = ("delay", "2ms", "reorder", "98%", "loss", "1%")  # those that don't overtake come late
    with disturbed(devices[0], *how) as forth, disturbed(devices[1], *how):
        assert b.fetch(a, keys) == ""
        assert lost(forth) > 0
    assert (b.holds(keys), b.counted("fallback"), b.counted("tag")) == (128, {}, {})
    assert b.moved("rdma_in") == (128, 128 * SLOT)


def test_a_link_that_goes_down_under_a_read_is_this_devices_fault_and_the_rest_comes_by_tcp(
    pair: Pair, devices: tuple[str, str]
) -> None:
    a, b = pair
    keys, more = chain("down", 128), chain("while down", 4)
    a.store(keys), a.store(more)
    with disturbed(devices[0], *SLOW):
        since = received(devices[1])
        with fetching(lambda: b.fetch(a, keys)) as ended:
            until_reading(b, devices[1], since)
            with link_down(devices[1]):
                until("the request has its blocks", lambda: ended)
                assert (ended, b.holds(keys), b.moved("demand_in")[0]) == ([""], 128, 128)
                assert b.moved("rdma_in")[0] < 128
                # what the request asks for later the other member refuses, whose end of the cable is down as well
                fallbacks = b.counted("fallback")
                assert fallbacks["fallback_rdma_port_down"] == 1
                assert set(fallbacks) <= {"fallback_rdma_port_down", "fallback_rdma_peer_without"}
                until("the device is left", lambda: told(b) == ("TCP", "rdma_port_down", "failed"))
                assert {error.reason for _, error in b.rdma.peers.failures()} <= {"rdma_peer_without"}
                assert b.fetch(a, more) == ""  # nothing is tried meanwhile
                assert (b.holds(more), b.counted("fallback")) == (4, fallbacks)
    for member in pair:
        until("the device is back", lambda member=member: told(member) == ("RDMA", "", "ready"))
        member.until_ready()
    tries = itertools.count()

    def by_rdma() -> bool:
        again, before = chain(f"up again {next(tries)}", 1), b.moved("rdma_in")[0]
        a.store(again)
        assert (b.fetch(a, again), b.holds(again)) == ("", 1)
        return b.moved("rdma_in")[0] == before + 1

    wait_for("blocks come by RDMA again", by_rdma, 60, 1)


def test_a_read_that_is_late_leaves_time_for_the_rest_to_come_by_tcp(pair: Pair, devices: tuple[str, str]) -> None:
    a, b = pair
    keys = chain("late", 32)
    a.store(keys)
    # faster than its rate none is, and at that these blocks take 8 s, more than half of the request's time
    with disturbed(devices[0], "rate", "2mbit"):
        assert b.fetch(a, keys, 12.0) == ""
    assert (b.holds(keys), b.moved("demand_in")[0], b.counted("fallback")) == (32, 32, {"fallback_rdma_late": 1})
    assert b.moved("rdma_in")[0] < 32
    assert [error.reason for _, error in b.rdma.peers.failures()] == ["rdma_late"]


def test_of_two_ports_with_different_mtus_the_smaller_one_holds_both_ways(pair: Pair, devices: tuple[str, str]) -> None:
    def mtus() -> list[int]:
        return [member.rdma.snapshot().devices[0].mtu for member in pair]

    with packets_of(network_of(devices[0]), 1500):
        until("it is told", lambda: mtus() == [1024, 4096])
        for reader, other in (pair, pair[::-1]):
            keys = chain(f"small {reader.address[-5:]}", 8)
            other.store(keys)
            reader.dialer.drop_idle(other.address)
            assert reader.fetch(other, keys) == ""
            assert (reader.holds(keys), reader.moved("rdma_in")[0], reader.counted("fallback")) == (8, 8, {})
    until("it is told", lambda: mtus() == [4096, 4096])
    for reader, other in (pair, pair[::-1]):
        reader.dialer.drop_idle(other.address)


def told(member: RdmaMember) -> tuple[str, str, str]:
    """What is in use, why not RDMA, and how the one device is."""
    seen: Transport = member.rdma.snapshot()
    return seen.in_use, seen.reason, "".join(one.state for one in seen.devices)


def test_of_a_member_that_is_killed_under_a_read_nothing_is_kept_that_has_not_come_whole(
    pair: Pair, devices: tuple[str, str]
) -> None:
    a, b = pair
    keys, used = chain("alone", 96), b.slab.arena.used_slots
    with alone(devices[0], 96) as (process, address), disturbed(devices[0], *SLOW):
        since = received(devices[1])
        with fetching(lambda: b.fetch(address, keys)) as ended:
            until_reading(b, devices[1], since)
            process.send_signal(signal.SIGKILL)
        assert ended == ["transfer_failed"]
    # the device does not answer, or the connection ends: whichever is seen first
    (seen,) = b.counted("fallback").items()
    assert seen in (("fallback_rdma_unreachable", 1), ("fallback_rdma_connection_lost", 1))
    came = b.moved("rdma_in")[0]
    assert (b.holds(keys), b.moved("demand_in")[0]) == (came, came)
    assert came < 96
    assert b.slab.arena.used_slots - used == came
    # that one is left alone, and others are not
    assert [(name, f"fallback_{error.reason}") for name, error in b.rdma.peers.failures()] == [(address, seen[0])]
    others = chain("others", 4)
    a.store(others)
    assert b.fetch(a, others) == ""
    assert (b.holds(others), b.moved("rdma_in")[0] - came) == (4, 4)


def test_connections_leave_no_queue_pair_no_descriptor_and_no_memory_behind(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "NEW_PER_SECOND", 1e6)
    a, b = pair

    def connect(times: int) -> None:
        for _ in range(times):
            with b.dialer.asking(a.address, a.slab.id, SECONDS) as connection:
                link = b.link(connection)
                read(link)
            b.dialer.drop_idle(a.address)
        until("they are gone", lambda: not (a.rdma._opened or b.rdma._opened or a.server._open or objects("qp")))

    processes = [os.getpid(), *(nic._process.pid for m in pair for nic in m.rdma._nics.values() if nic._process)]
    connect(BEFORE)
    kept = {kind: len(objects(kind)) for kind in ("mr", "pd", "cq")}
    before = [(descriptors(pid), resident(pid)) for pid in processes]
    connect(CONNECTIONS)
    after = [(descriptors(pid), resident(pid)) for pid in processes]
    assert {kind: len(objects(kind)) for kind in ("mr", "pd", "cq")} == kept
    assert [files for files, _ in after] == [files for files, _ in before]
    grown = [now - then for (_, now), (_, then) in zip(after, before, strict=True)]
    assert max(grown) < 1 << 20, grown  # of a thousand, a kilobyte for each would be seen
    assert b.account.counters == {}


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def resident(pid: int) -> int:
    """Bytes of memory of its own."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))
