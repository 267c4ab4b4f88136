"""What a peer transfer costs against a bare socket, measured interleaved in one run.

    python benchmarks/transfer.py [--rounds 20] [--megabytes 256]

Two processes on the loopback address. The source serves the same memory twice: through kvpool's peer protocol, and
as a bare stream of the same bytes. Each round fetches all of it both ways, in an order that turns every round, into
the same memory; the way through kvpool reads headers and checks every block's tag. Figures are medians over the rounds
and the median of each round's ratio; the line A/A is the bare socket against itself, which is the noise of this run.
"""

import argparse
import mmap
import multiprocessing
import os
import resource
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "agent"))

from kvpool_agent.peer import frames
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.peer.serve import PeerServer
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.store.tag import tag_of

MIB = 2**20
FORMAT = b"benchmark-format"


def block_keys(count: int) -> list[bytes]:
    return [i.to_bytes(16, "big") for i in range(count)]


class Memory:
    """A source of blocks of one size that lie one after another (kvpool_agent.peer.serve.Source)."""

    pool = "benchmark"

    def __init__(self, count: int, size: int) -> None:
        self._keys = {key: i for i, key in enumerate(block_keys(count))}
        self.map = mmap.mmap(-1, count * size)
        chunk = os.urandom(MIB)
        for at in range(0, count * size, MIB):
            self.map[at : at + MIB] = chunk
        view = memoryview(self.map)
        self.views = [view[i * size : (i + 1) * size] for i in range(count)]
        self._tags = [tag_of(key, self.views[i]) for key, i in self._keys.items()]

    def welcome(self, version: int) -> frames.Welcome:
        return frames.Welcome(version, "source", "1", "Ready(warm)", FORMAT.hex(), len(self.views))

    def holds(self, fingerprint: bytes, keys: Sequence[bytes]) -> list[bool]:  # noqa: ARG002
        return [key in self._keys for key in keys]

    def description(self) -> bytes:
        return b""

    def hottest(self, fingerprint: bytes, limit: int) -> list[HotBlock]:  # noqa: ARG002
        return []

    @contextmanager
    def blocks(
        self,
        fingerprint: bytes,  # noqa: ARG002
        keys: Sequence[bytes],
        purpose: str,  # noqa: ARG002
    ) -> Iterator[Iterator[tuple[int, bytes, memoryview]]]:
        yield ((i, self._tags[self._keys[key]], self.views[self._keys[key]]) for i, key in enumerate(keys))


def serve(count: int, size: int, pipe: Pipe) -> None:
    """The source's process: tells its two ports, then serves until the pipe closes; answers with its CPU seconds."""
    memory = Memory(count, size)
    server = PeerServer("127.0.0.1", 0, memory)
    server.start()
    bare = socket.create_server(("127.0.0.1", 0))
    pipe.send((server.port, bare.getsockname()[1]))
    connection, _ = bare.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while True:
        word = connection.recv(1)
        if not word:
            break
        if word == b"c":
            pipe.send(cpu_seconds())
            continue
        for view in memory.views:
            connection.sendall(view)
    server.close()


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(size: int, total: int, rounds: int) -> None:
    count = total // size
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(count, size, theirs), daemon=True)
    process.start()
    peer_port, bare_port = ours.recv()
    bare = socket.create_connection(("127.0.0.1", bare_port))
    dialer = Dialer(Identity("benchmark", "sink", "1"))
    target = memoryview(mmap.mmap(-1, count * size))
    views = [target[i * size : (i + 1) * size] for i in range(count)]
    keys = block_keys(count)

    def by_socket() -> None:
        bare.sendall(b"g")
        for view in views:
            done = 0
            while done < size:
                done += bare.recv_into(view[done:])

    def by_kvpool() -> None:
        def land(index: int, tag: bytes, length: int, read_into: Callable[[memoryview], None]) -> None:
            assert length == size
            read_into(views[index])
            if tag_of(keys[index], views[index]) != tag:
                raise SystemExit("a block's bytes don't match their tag")

        dialer.fetch(f"127.0.0.1:{peer_port}", FORMAT, keys, "demand", time.monotonic() + 60, land)

    def source_cpu() -> float:
        bare.sendall(b"c")
        return float(ours.recv())

    ways = {"socket": by_socket, "socket again": by_socket, "kvpool": by_kvpool}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        names = list(ways)
        names = names[number % 3 :] + names[: number % 3]
        for name in names:
            used, started = cpu_seconds() + source_cpu(), time.monotonic()
            ways[name]()
            taken = time.monotonic() - started
            if number:  # the first round warms up
                seconds[name].append(taken)
                cpu[name].append(cpu_seconds() + source_cpu() - used)
    bare.close()
    dialer.close()
    process.join(10)
    gigabytes = count * size / 1e9
    for name in ("socket", "kvpool"):
        rate = gigabytes / statistics.median(seconds[name])
        cost = statistics.median(cpu[name]) / gigabytes
        print(f"{size // MIB:3d} MiB  {name:8}  {rate:5.2f} GB/s  {cost:5.2f} CPU-s/GB")
    for name, label in (("kvpool", "kvpool / socket"), ("socket again", "A/A, noise")):
        ratios = sorted(b / a for a, b in zip(seconds[name], seconds["socket"], strict=True))
        low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
        print(f"{size // MIB:3d} MiB  {label:15}  {statistics.median(ratios):.2f}  (quartiles {low:.2f} to {high:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=256)
    options = parser.parse_args()
    for size in (2 * MIB, 16 * MIB):
        measure(size, options.megabytes * MIB, options.rounds)


if __name__ == "__main__":
    main()
