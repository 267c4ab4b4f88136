"""Members with two devices each: reads are spread over them, and one that fails is left and taken back."""

from rdma.cable import SLOW, disturbed
from rdma.member import SLOT, RdmaMember, chain, fetching, members, until

SLOTS = 512


def until_all_ready(*made: RdmaMember) -> None:
    for member in made:
        until("every device has the slab", lambda member=member: len(member.rdma._regions) == 2)


def test_reads_are_spread_over_the_devices_and_one_that_fails_is_left_and_taken_back(
    devices: tuple[str, str],
) -> None:
    with members(RdmaMember("a", devices, SLOTS), RdmaMember("b", devices, SLOTS)) as (a, b):
        one, two, three = chain("one", 64), chain("two", 64), chain("three", 64)
        for keys in (one, two, three):
            a.store(keys)
        until_all_ready(a, b)
        nics = b.rdma._nics
        with disturbed(devices[0], *SLOW), disturbed(devices[1], *SLOW):
            with fetching(lambda: b.fetch(a, one)) as first, fetching(lambda: b.fetch(a, two)) as second:
                until("each device reads", lambda: all(nic.in_flight for nic in nics.values()))
            assert (first, second, b.holds(one + two)) == ([""], [""], 128)
            assert b.moved("rdma_in") == (128, 128 * SLOT)
            assert [nic.queue_pairs for nic in nics.values()] == [1, 1]
            # a device's process dies under a read
            with fetching(lambda: b.fetch(a, three)) as third:
                until("a read is on its way", lambda: any(nic.in_flight for nic in nics.values()))
                (name,) = (name for name, nic in nics.items() if nic.in_flight)
                process = nics[name]._process
                assert process is not None
                process.kill()
            assert (third, b.holds(three)) == ([""], 64)
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
