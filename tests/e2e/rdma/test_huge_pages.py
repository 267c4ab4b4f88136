"""Transparent huge pages for the arena: obtained where the kernel gives them to shared memory, and told either way."""

from collections.abc import Iterator
from contextlib import contextmanager

from rdma.cable import network_of
from rdma.member import RdmaMember, members, until

from kvpool_agent.observe import spaces
from kvpool_agent.store import huge
from kvpool_contract.status import HugePages

PAGE = 2 << 20
SLOTS = 500  # 32 MiB


@contextmanager
def setting(word: str) -> Iterator[None]:
    before = huge.SETTING.read_text().partition("[")[2].partition("]")[0]
    huge.SETTING.write_text(word)
    try:
        yield
    finally:
        huge.SETTING.write_text(before)


def test_a_registered_arena_lies_in_huge_pages_where_they_are_asked_for_and_given(
    devices: tuple[str, str],
) -> None:
    network_of(devices[0])  # the node's setting is changed in a machine of our own alone
    before = huge.of_container()
    with (
        setting("advise"),  # before an arena is made: its file keeps what holds then
        members(
            RdmaMember("asks", devices[:1], SLOTS, huge_pages=True), RdmaMember("does not", devices[1:], SLOTS)
        ) as (asks, other),
    ):
        asks.until_ready(), other.until_ready()  # their arenas are registered: all of both is in memory
        given = before - (-asks.memory.size // PAGE * PAGE)
        until("the kernel has counted them", lambda: huge.of_container() == given)  # it does so in turns of 2 s
        assert spaces.arena(asks.slabs).huge_pages == HugePages(True, given, "")
        assert spaces.arena(other.slabs).huge_pages == HugePages()
