"""Reads by RDMA between two devices against perftest's `ib_read_bw` on the same two, for transfer.py.

Two members, each with its device's process: what moves blocks, and nothing else of an agent. A fetch reads every block
of the source's arena into the sink's and checks their tags; `ib_read_bw` reads one buffer again and again and checks
nothing. Its rate is what it says itself, so that its start doesn't count; its CPU seconds hold its start, too.
"""

import multiprocessing
import os
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import rounds

from kvpool_agent.account import Account
from kvpool_agent.flows.answer import OwnBlocks
from kvpool_agent.flows.reading import Reading
from kvpool_agent.keyring import Keyring
from kvpool_agent.peer import frames
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.peer.rdma.nic import Nic
from kvpool_agent.peer.rdma.reader import Reader
from kvpool_agent.peer.rdma.transport import Rdma
from kvpool_agent.peer.serve import PeerServer
from kvpool_agent.policy.purposes import Purposes, purposes
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slabs
from kvpool_agent.store.tag import tag_of
from kvpool_contract import config
from kvpool_contract.names import format_fingerprint

MIB = 2**20
FIELDS = {"engine": "benchmark"}
FORMAT = format_fingerprint(FIELDS)
SYSTEM = Path("/sys/class/infiniband")
PORT, OUTSTANDING = 18515, 16
START_SECONDS, TURN_SECONDS = 120.0, 120.0
TICKS = os.sysconf("SC_CLK_TCK")


def lacks() -> str:
    """What is missing to measure, in one line; empty where nothing is."""
    if len(devices()) != 2:
        return "KVPOOL_RDMA_DEVICES names no two devices (tests/e2e/rdma/machine.py gives two made of software)"
    return "" if shutil.which("ib_read_bw") else "the command ib_read_bw of perftest"


def devices() -> list[str]:
    return [name for name in os.environ.get("KVPOOL_RDMA_DEVICES", "").split(",") if name]


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def unpaced() -> Purposes:
    return purposes(config.Prewarm(), config.Loading(), config.Drain(), config.Replication())


class Member:
    """An arena with room for all blocks and half as many again, since readers may keep a part alone, and its device."""

    def __init__(self, name: str, device: str, blocks: int, size: int) -> None:
        self.account = Account()
        self.memory = ArenaMemory.anonymous(4 * blocks * (size + 64) + MIB)
        self.slabs = Slabs(self.memory, 0.0, Keyring())
        self.slab = self.slabs.open(FORMAT, FIELDS, size)
        told = config.AgentConfig(
            version=1, pool="benchmark", arenaBytes=self.memory.size, members=config.Members(file="none"),
            tls=config.Tls(mode="Disabled"), transport=config.Transport(rdma=config.Rdma(devices=(device,))),
        )  # fmt: skip
        self.identity = Identity("benchmark", name, name)
        self.rdma = Rdma(told, self.memory, lambda: self.slabs.all, self.account)
        self.rdma.start()

    def until_ready(self) -> Nic:
        until = time.monotonic() + START_SECONDS
        while not self.rdma.ready(self.slab):
            if time.monotonic() > until:
                raise SystemExit(f"no RDMA: {self.rdma.snapshot()}")
            time.sleep(0.05)
        return self.nic

    @property
    def nic(self) -> Nic:
        (found,) = self.rdma._nics.values()
        return found

    def cpu_seconds(self) -> float:
        """Of this process and its device's."""
        assert self.nic._process is not None
        return cpu_of(os.getpid()) + cpu_of(self.nic._process.pid)


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class NoProbe:
    withdrawn = False


def serve(device: str, blocks: int, size: int, pipe: Pipe) -> None:
    """The source's process: tells its port and its device's address, then answers with its CPU seconds."""
    member = Member("source", device, blocks, size)
    chunk = os.urandom(MIB)
    for number, slot in enumerate(member.slab.arena.reserve(blocks, time.monotonic())):
        view = member.slab.view(slot)
        for at in range(0, size, MIB):
            view[at : at + MIB] = chunk[: min(MIB, size - at)]
        tag = tag_of(key_of(number), view)
        member.slab.arena.commit(key_of(number), key_of(number - 1) if number else b"", slot, tag, foreign=False)
    reading = Reading(member.account, unpaced)
    source = OwnBlocks(member.identity, member.slabs, reading, lambda: "Ready(warm)", NoProbe(), rdma=member.rdma)  # type: ignore[arg-type]
    server = PeerServer("127.0.0.1", 0, source, purposes=unpaced)
    server._versions = (frames.LENDING_VERSION,)  # as one that has a directory
    server.start()
    pipe.send((server.port, member.until_ready().seen.address))
    while pipe.recv():
        pipe.send(member.cpu_seconds())
    member.rdma.close()
    server.close()


class Reads:
    """Both ways to read, and what each has cost."""

    def __init__(self, blocks: int, size: int) -> None:
        self._here, self._there = devices()[1], devices()[0]
        self._blocks, self._size = blocks, size
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=serve, args=(self._there, blocks, size, theirs), daemon=True
        )
        self._process.start()
        self._member = Member("sink", self._here, blocks, size)
        self._dialer = Dialer(self._member.identity)
        self._reader = Reader(self._member.rdma, self._dialer, self._member.account)
        port, self._address_there = self._pipe.recv()
        self._address, self._address_here = f"127.0.0.1:{port}", self._member.until_ready().seen.address

    def by_kvpool(self) -> tuple[float, float]:
        """(bytes per second, CPU seconds of both ends)."""
        arena = self._member.slab.arena
        slots = arena.reserve(self._blocks, time.monotonic())
        came: list[int] = []
        used, began = self._cpu(), time.perf_counter()
        self._reader.fetch(
            self._member.slab, self._address, [key_of(n) for n in range(self._blocks)], "demand",
            time.monotonic() + TURN_SECONDS, slots, lambda: None, lambda _index, _tag, slot: came.append(slot),
        )  # fmt: skip
        seconds, used = time.perf_counter() - began, self._cpu() - used
        if len(came) != self._blocks:
            raise SystemExit(f"{len(came)} of {self._blocks} blocks came")
        arena.give_back(came)
        return self._blocks * self._size / seconds, used

    def by_perftest(self) -> tuple[float, float]:
        common = ["-p", str(PORT), "-s", str(self._size), "-n", str(max(5, self._blocks)), "-o", str(OUTSTANDING)]
        common += ["-F", "--report_gbits", "--output=bandwidth"]
        there = subprocess.Popen(
            ["ib_read_bw", "-d", self._there, "-x", gid_index(self._there, self._address_there), *common],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until_listens(PORT)
        command = ["ib_read_bw", "-d", self._here, "-x", gid_index(self._here, self._address_here), *common]
        here = subprocess.Popen([*command, self._address_there], stdout=subprocess.PIPE, text=True)
        assert here.stdout is not None
        said = here.stdout.read()
        used = 0.0
        for process in (here, there):
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            used += usage.ru_utime + usage.ru_stime
        rates = re.findall(r"^\s*(\d+\.\d+)\s*$", said, re.MULTILINE)
        if here.returncode or not rates:
            raise SystemExit(f"ib_read_bw: {said.strip() or here.returncode}")
        gigabytes = max(5, self._blocks) * self._size / 1e9
        return float(rates[-1]) * 1e9 / 8, used * (self._blocks * self._size / 1e9) / gigabytes

    def _cpu(self) -> float:
        self._pipe.send(True)
        return float(self._pipe.recv()) + self._member.cpu_seconds()

    def close(self) -> None:
        self._dialer.close()
        self._member.rdma.close()
        self._pipe.send(False)
        self._process.join(10)


def gid_index(device: str, address: str) -> str:
    """Of the entry of RoCE version 2 that bears this address of version 4."""
    port = SYSTEM / device / "ports" / "1"
    digits = "".join(f"{int(part):02x}" for part in address.split("."))
    for entry in sorted((port / "gids").iterdir(), key=lambda path: int(path.name)):
        if not entry.read_text().strip().replace(":", "").endswith("ffff" + digits):
            continue
        if "v2" in (port / "gid_attrs" / "types" / entry.name).read_text():
            return entry.name
    raise SystemExit(f"{device} has no address {address}")


def until_listens(port: int) -> None:
    until = time.monotonic() + START_SECONDS
    wanted = f":{port:04X} "
    while time.monotonic() < until:
        tables = [Path("/proc/net/tcp").read_text(), Path("/proc/net/tcp6").read_text()]
        for line in "".join(tables).splitlines():
            fields = line.split()
            if len(fields) > 3 and f"{fields[1]} ".endswith(wanted) and fields[3] == "0A":
                return
        time.sleep(0.02)
    raise SystemExit("ib_read_bw does not listen")


def measure(size: int, total: int, count: int) -> None:
    """Rounds of `total` bytes each, in blocks of `size`."""
    reads = Reads(total // size, size)
    calls: dict[str, Callable[[], tuple[float, float]]] = {
        "ib_read_bw": reads.by_perftest, "ib_read_bw again": reads.by_perftest, "kvpool by RDMA": reads.by_kvpool,
    }  # fmt: skip
    try:
        found = rounds.run(calls, count)
    finally:
        reads.close()
    first: Sequence[float] = [rate for rate, _ in found["ib_read_bw"]]
    for name, taken in found.items():
        rates, gigabytes = [rate for rate, _ in taken], total // size * size / 1e9
        cost = statistics.median(used for _, used in taken) / gigabytes
        compared = "" if name == "ib_read_bw" else f"  {rounds.ratio(rates, first)} of ib_read_bw"
        noise = ", noise" if name == "ib_read_bw again" else ""
        line = f"{name:18} {statistics.median(rates) / 1e9:6.3f} GB/s {cost:6.2f} CPU-s/GB{compared}{noise}"
        print(f"{size / MIB:5.2f} MiB  {line}", flush=True)
