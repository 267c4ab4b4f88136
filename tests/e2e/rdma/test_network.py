"""A network that loses packets: what was asked for comes all the same."""

from collections.abc import Iterator

import pytest
from rdma.cable import disturbed, lost
from rdma.member import SLOT, RdmaMember, chain, members

SLOTS = 512
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
