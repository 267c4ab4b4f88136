"""The disk tier on a kubelet: a StatefulSet's volume under an agent that has little memory beside its arena."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from process_use import growth
from replica import MIB
from standin_engine import prompt

from cluster import volumes
from cluster.chart import Chart
from cluster.engines import Member
from cluster.kube import wait_for
from cluster.standins import Served, StandIns, ask

ROW, BLOCKS = 256 << 10, 16
ARENA, DISK = 32 * MIB, 64 * MIB
TURNS = 10
PROMPTS = TURNS * ARENA // (BLOCKS * ROW)


@pytest.fixture
def volume(chart: Chart, standins: StandIns, tmp_path: Path) -> Iterator[None]:
    if not chart.provided.folder:
        pytest.skip("the disks of a named cluster are its owner's")
    tmp_path.chmod(0o755)
    folder = tmp_path / "volume"
    folder.mkdir()
    with volumes.volume(standins, folder):
        yield


def quiet(member: Member) -> bool:
    """Whether all that two requests contained has been written, or was dropped."""
    status = member.status()
    gone = sum(n for word, n in status.counters.items() if word.startswith("disk_dropped_"))
    return status.disk.state == "ready" and status.transfers["disk_out"].blocks + gone >= status.hits.local_blocks


def churn(number: int) -> list[int]:
    return prompt(f"churn-{number}", BLOCKS)


def test_ten_arenas_of_churn_over_a_sealed_disk_end_no_container_and_a_new_pod_finds_its_volume(
    volume: None, standins: StandIns
) -> None:
    # the host pool has room for two prompts
    member = volumes.start(standins, row_bytes=ROW, rows=2 * BLOCKS, arena=ARENA, disk=DISK, keys=True)
    used, loaded = [], 0
    for number in range(PROMPTS):
        assert ask(member.pod.address, churn(number)) == Served(computed=BLOCKS)
        if number < 2:
            continue
        # the host pool, with room for two, has this one no more: it comes from the arena, and goes to the disk
        served = ask(member.pod.address, churn(number - 2))
        assert served.computed + served.pool == BLOCKS  # on a node that is too busy, blocks may go before that
        loaded += served.pool
        if not number % 4:
            used.append(volumes.memory(standins, member).anonymous)
    wait_for("what waits is written", lambda: quiet(member), 120)
    status = member.status()
    assert status.transfers["disk_out"].bytes > 4 * ARENA and loaded * ROW > 4 * ARENA, (loaded, status.counters)
    assert status.arena.evicted_blocks > (TURNS - 1) * ARENA // ROW
    assert status.counters["disk_evicted_blocks"] > 0 and ARENA < status.disk.used_bytes <= DISK
    assert volumes.ends(standins, member) == []
    assert growth(used[len(used) // 3 :]) < volumes.FLAT, used

    standins.kubectl("delete", "pod", member.pod.name, "--wait=false")
    wait_for("another pod", lambda: [m for m in standins.members() if m.pod.uid != member.pod.uid], 120)
    (again,) = standins.wait_ready(1)
    found = wait_for("it is looked through", lambda: (s := again.status()).disk.state == "ready" and s, 120)
    assert found.counters["disk_recovered_blocks"] == found.disk.blocks == status.disk.blocks
    # the last ones that were written are served from it, and nobody else has been asked
    came = [ask(again.pod.address, churn(PROMPTS - 3 - back)).pool for back in range(4)]
    assert max(came) == BLOCKS, came
    moved = again.status().transfers
    assert moved["disk_in"].blocks >= BLOCKS and moved.keys() <= {"disk_in", "disk_out", "store_in"}
    assert volumes.ends(standins, again) == []
