"""The agents of `churn.py --pods`: each in a pod of a cluster, with little memory beside its arena."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import churned
from churned import Churned, Round, Way
from cluster import images, provider, readme, volumes
from cluster.chart import Chart
from cluster.standins import StandIns, ask, wait_known
from process_use import growth
from replica import MIB

from kvpool_contract.status import AgentStatus


class Pod(Churned):
    """A joined pod, which is asked over HTTP."""

    def __init__(self, way: Way, standins: StandIns, count: int) -> None:
        """Started and ready. count: of rounds."""
        super().__init__(way)
        arena = churned.arena_bytes(way, count)
        self._standins, self._limit = standins, arena + volumes.BESIDE
        self._member = volumes.start(
            standins,
            row_bytes=churned.ROW_BYTES,
            rows=churned.ROWS,
            arena=arena,
            disk=churned.DISK_BYTES if way.churn else 0,
            keys=way.keys,
            seconds=churned.TOKEN_SECONDS,
        )
        self._anonymous: list[int] = []

    def first_token(self, tokens: list[int]) -> float:
        began = time.monotonic()
        return ask(self._member.pod.address, tokens).first_token - began

    def until_knows(self, tokens: list[int]) -> None:
        wait_known(self._member, tokens)

    def status(self) -> AgentStatus:
        return self._member.status()

    def round(self) -> Round:
        found = super().round()
        self._anonymous.append(volumes.memory(self._standins, self._member).anonymous)
        return found

    def check(self) -> None:
        """Also where a container has ended, or the agent's own memory has grown."""
        super().check()
        own = self._anonymous[len(self._anonymous) // 3 :]
        most = volumes.memory(self._standins, self._member).most
        print(
            f"    of its own {own[-1] / MIB:.1f} MiB, grown by {growth(own) / MIB:.1f} MiB; all together "
            f"{most / MIB:.1f} MiB at most, of {self._limit / MIB:.0f} MiB"
        )
        assert volumes.ends(self._standins, self._member) == []
        assert growth(own) < volumes.FLAT, self._anonymous


@contextmanager
def pods(folder: Path, count: int) -> Iterator[list[Churned]]:
    """count: of rounds. Ends the program where no cluster can be had."""
    why = "its volumes are folders of the testbed's nodes" if provider.named() else provider.lacking()
    if why:
        raise SystemExit(f"--pods: {why}")
    folder.chmod(0o755)  # agents are nobody's
    for name in ("images", "reader"):
        (folder / name).mkdir()
    with (
        images.in_the_making(folder / "images") as load,
        provider.provide("node") as cluster,
        ExitStack() as stack,
    ):
        load(cluster)
        Chart(cluster).install(readme.checkout(folder / "reader"))
        made: list[Churned] = []
        for number, way in enumerate(churned.WAYS):
            standins = StandIns(cluster, f"churn-{number}")
            (volume := folder / f"volume-{number}").mkdir()
            stack.callback(standins.remove)
            stack.enter_context(volumes.volume(standins, volume))
            made.append(Pod(way, standins, count))
        yield made
