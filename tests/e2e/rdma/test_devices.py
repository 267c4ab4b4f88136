"""Members with two devices each: reads are spread over them, and one that fails is left and taken back."""

import signal
import subprocess
import threading
from collections.abc import Callable

import pytest
from rdma.member import SLOT, WAIT, RdmaMember, chain, fetching, members, until

from kvpool_agent.peer.connection import Connection
from kvpool_agent.peer.rdma.nic import Nic
from kvpool_agent.peer.rdma.transport import Link
from kvpool_agent.store.slab import Slab

SLOTS = 512


def until_all_ready(*made: RdmaMember) -> None:
    for member in made:
        until("every device has the slab", lambda member=member: len(member.rdma._regions) == 2)


def before_each_read(member: RdmaMember, change: pytest.MonkeyPatch, do: Callable[[Nic], object]) -> None:
    """Between a fetch's link and what is read by it."""
    link = member.rdma.link

    def link_and_do(connection: Connection, slab: Slab, nic: Nic) -> Link:
        made = link(connection, slab, nic)
        do(nic)
        return made

    change.setattr(member.rdma, "link", link_and_do)


def process_of(nic: Nic) -> subprocess.Popen[bytes]:
    assert nic._process is not None
    return nic._process


def test_reads_are_spread_over_the_devices_and_one_that_fails_is_left_and_taken_back(
    devices: tuple[str, str],
) -> None:
    with members(RdmaMember("a", devices, SLOTS), RdmaMember("b", devices, SLOTS)) as (a, b):
        one, two, three = chain("one", 64), chain("two", 64), chain("three", 64)
        for keys in (one, two, three):
            a.store(keys)
        until_all_ready(a, b)
        nics = b.rdma._nics
        at_work: list[list[int]] = []
        meeting = threading.Barrier(2, lambda: at_work.append([nic.in_flight for nic in nics.values()]), WAIT)
        with pytest.MonkeyPatch.context() as patched:
            before_each_read(b, patched, lambda _: meeting.wait())
            with fetching(lambda: b.fetch(a, one)) as first, fetching(lambda: b.fetch(a, two)) as second:
                pass
        assert (first, second, b.holds(one + two)) == ([""], [""], 128)
        assert b.moved("rdma_in") == (128, 128 * SLOT), b.account.counters
        assert at_work == [[64 * SLOT, 64 * SLOT]]
        assert [nic.queue_pairs for nic in nics.values()] == [1, 1]
        # a device's process dies with a read to do
        stopped: list[Nic] = []
        with pytest.MonkeyPatch.context() as patched:
            before_each_read(b, patched, lambda nic: stopped.append(nic) or process_of(nic).send_signal(signal.SIGSTOP))
            with fetching(lambda: b.fetch(a, three)) as third:
                until("its device does nothing", lambda: stopped)
                process_of(stopped[0]).kill()
        assert (third, b.holds(three), len(stopped)) == ([""], 64, 1)
        assert b.counted("fallback") == {"fallback_rdma_process_ended": 1}
        assert b.rdma.peers.failures() == []
        until("it is left", lambda: b.counted("device") == {"device_rdma_process_ended": 1})
        before, four = b.moved("rdma_in")[0], chain("four", 16)
        a.store(four)
        assert b.fetch(a, four) == ""
        assert (b.holds(four), b.moved("rdma_in")[0] - before) == (16, 16)
        until_all_ready(b)
        states = [(device.name, device.state) for device in b.rdma.snapshot().devices]
        assert sorted(states) == [(device, "ready") for device in sorted(devices)]
