"""Whether a process for each stream pays inside TLS: bare TLS sockets, in threads of two processes and in processes.

    python benchmarks/tls_streams.py [--streams 4] [--rounds 20] [--megabytes 256]

The same bytes over as many connections on the loopback address, TLS 1.3 with certificates on both sides. `threads`: one
process sends on all of them and one receives, a thread for each, as agents do. `processes`: each connection has two
processes of its own, so no two share an interpreter's lock. What an agent could gain by processes is the difference,
before it has paid for bytes and verdicts that cross from one to another. Rounds are interleaved; the second line is the
first way against itself, which is the noise.
"""

import argparse
import mmap
import multiprocessing
import resource
import socket
import statistics
import struct
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "agent")]

import rounds  # noqa: E402
import secured  # noqa: E402

MIB = 2**20
BLOCK = 2 * MIB
BLOCKS = struct.Struct("<I")
SPAWN = multiprocessing.get_context("spawn")


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def send(pair: secured.Pair, streams: int, pipe: Pipe) -> None:
    """One process that sends: it tells its port, takes so many connections, then tells its CPU seconds when asked."""
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname()[1])
    accept, view = secured.accept(pair), memoryview(mmap.mmap(-1, BLOCK))

    def serve(taken: socket.socket) -> None:
        connection = accept(taken)
        while asked := connection.recv(BLOCKS.size):
            for _ in range(BLOCKS.unpack(asked)[0]):
                connection.sendall(view)

    for _ in range(streams):
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
    while pipe.recv():
        pipe.send(cpu_seconds())


def receive(pair: secured.Pair, port: int, streams: int, blocks: int, pipe: Pipe) -> None:
    """One process that receives so many blocks on each of its connections when it is told to."""
    connections = [secured.connect(pair, port) for _ in range(streams)]
    targets = [memoryview(mmap.mmap(-1, BLOCK)) for _ in connections]
    threads = ThreadPoolExecutor(streams)

    def take(connection: socket.socket, target: memoryview) -> None:
        connection.sendall(BLOCKS.pack(blocks))
        for _ in range(blocks):
            done = 0
            while done < BLOCK:
                done += connection.recv_into(target[done:])

    pipe.send(True)
    while pipe.recv():
        list(threads.map(take, connections, targets))
        pipe.send(cpu_seconds())


class Way:
    """Pairs of processes, each with its part of the streams."""

    def __init__(self, parts: list[int], blocks: int) -> None:
        """parts: how many streams each pair has. blocks: of each stream and round."""
        ours, theirs = secured.pairs("sink", "source")
        self.processes, self._sources, self._sinks = [], [], []
        for streams in parts:
            source, far = SPAWN.Pipe()
            self._start(send, theirs, streams, far)
            sink, far = SPAWN.Pipe()
            self._start(receive, ours, source.recv(), streams, blocks, far)
            sink.recv()
            self._sources.append(source)
            self._sinks.append(sink)
        self._used = 0.0
        self.cpu: list[float] = []

    def _start(self, what: Callable[..., None], *arguments: object) -> None:
        process = SPAWN.Process(target=what, args=arguments, daemon=True)
        process.start()
        self.processes.append(process)

    def turn(self) -> float:
        """Seconds until all bytes are there; CPU seconds of all processes are kept."""

        def all_of_it() -> None:
            nonlocal used
            for sink in self._sinks:
                sink.send(True)
            used = sum(sink.recv() for sink in self._sinks)

        used = 0.0
        seconds = rounds.timed(all_of_it)
        for source in self._sources:
            source.send(True)
        used += sum(source.recv() for source in self._sources)
        self.cpu.append(used - self._used)
        self._used = used
        return seconds

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=256)
    options = parser.parse_args()
    blocks = options.megabytes * MIB // options.streams // BLOCK
    threads, again = [options.streams], [options.streams]
    ways = {name: Way(parts, blocks) for name, parts in (
        ("threads", threads), ("threads again", again), ("processes", [1] * options.streams),
    )}  # fmt: skip
    print(f"{options.streams} streams, {options.megabytes} MiB a round, {options.rounds} rounds; {rounds.machine()}")
    try:
        seconds = rounds.run({name: way.turn for name, way in ways.items()}, options.rounds)
    finally:
        for way in ways.values():
            way.close()
    gigabytes = blocks * options.streams * BLOCK / 1e9
    for name, taken in seconds.items():
        rate, cost = gigabytes / statistics.median(taken), statistics.median(ways[name].cpu[1:]) / gigabytes
        compared = "" if name == "threads" else f"  {rounds.ratio(seconds['threads'], taken)} of threads"
        print(f"{name:14} {rate:5.2f} GB/s {cost:5.2f} CPU-s/GB{compared}")


if __name__ == "__main__":
    main()
