"""What a peer transfer costs against a bare socket, and against other stores, measured interleaved in one run.

    python benchmarks/transfer.py [--quick] [--rounds 20] [--megabytes 256] [--tls] [--peers] [--rdma]

Two processes on the loopback address. The source serves the same memory twice: through kvpool's peer protocol, and
as a bare stream of the same bytes. Each round fetches all of it every way, in an order drawn anew, into the same
memory; the way through kvpool reads headers and checks every block's tag. Figures are medians over the rounds and the
median of each round's ratio; the line A/A is the bare socket against itself, which is the noise of this run. With
several streams each fetches its share of the blocks.

`--tls` takes both inside TLS 1.3 with certificates on both sides; the bare socket in clear stays in the rounds. Then
what a handshake costs, whole and resumed. Every TLS figure includes both ends' ciphers on the same cores.

`--peers` also asks Mooncake's store over TCP and LMCache's server (see peers/) in the same rounds, one stream, for the
same number of bytes; they check no bytes. Their environments are made once, outside the checkout.

`--rdma` measures reads by RDMA alone (by_rdma.py), between the two devices that KVPOOL_RDMA_DEVICES names.
"""

import argparse
import json
import mmap
import multiprocessing
import os
import resource
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "agent"), str(HERE / "peers")]

import by_rdma  # noqa: E402
import environments  # noqa: E402
import rounds  # noqa: E402
import secured  # noqa: E402

from kvpool_agent.peer import frames  # noqa: E402
from kvpool_agent.peer.dial import Dialer, Identity  # noqa: E402
from kvpool_agent.peer.serve import PeerServer  # noqa: E402
from kvpool_agent.peer.tls import CLEAR  # noqa: E402
from kvpool_agent.policy.heat import HotBlock  # noqa: E402
from kvpool_agent.store.tag import tag_of  # noqa: E402

MIB = 2**20
FORMAT = b"benchmark-format"
SHARE = struct.Struct("<II")  # first block, number of blocks
PEERS = {"mooncake": environments.mooncake, "lmcache": environments.lmcache}


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


def serve(count: int, size: int, pipe: Pipe, pair: secured.Pair | None) -> None:
    """The source's process: tells its ports, then answers the pipe with its CPU seconds until that closes."""
    memory = Memory(count, size)
    server = PeerServer("0.0.0.0", 0, memory, transport=CLEAR if pair is None else pair.transport())
    server.start()
    ports = [server.port]
    for accept in [lambda sock: sock, *([secured.accept(pair)] if pair is not None else [])]:
        bare = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=serve_bare, args=(bare, memory, accept), daemon=True).start()
        ports.append(bare.getsockname()[1])
    pipe.send(ports)
    while pipe.recv():
        pipe.send(cpu_seconds())
    server.close()


def serve_bare(listener: socket.socket, memory: Memory, accept: Callable[[socket.socket], socket.socket]) -> None:
    def stream(taken: socket.socket) -> None:
        connection = accept(taken)
        while share := connection.recv(SHARE.size):
            start, blocks = SHARE.unpack(share)
            for view in memory.views[start : start + blocks]:
                connection.sendall(view)

    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=stream, args=(connection,), daemon=True).start()


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Source:
    """The source's process, and the ways to fetch all of its blocks into memory of this one."""

    def __init__(self, count: int, size: int, streams: int, tls: bool) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        ours, pair = secured.pairs("sink", "source") if tls else (None, None)
        process = multiprocessing.get_context("spawn").Process(
            target=serve, args=(count, size, theirs, pair), daemon=True
        )
        process.start()
        self._process = process
        peer_port, bare_port, *tls_port = self._pipe.recv()
        self._address, self._pair = f"127.0.0.1:{peer_port}", ours
        self._dialer = Dialer(Identity("benchmark", "sink", "1"), CLEAR if ours is None else ours.transport())
        self._bare = [socket.create_connection(("127.0.0.1", bare_port)) for _ in range(streams)]
        self._tls = [secured.connect(ours, tls_port[0]) for _ in range(streams)] if ours is not None else []
        target = memoryview(mmap.mmap(-1, count * size))
        self._views = [target[i * size : (i + 1) * size] for i in range(count)]
        self._keys = block_keys(count)
        share = -(-count // streams)
        self._shares = [range(at, min(at + share, count)) for at in range(0, count, share)]
        self._threads = ThreadPoolExecutor(streams)

    def by_socket(self) -> None:
        list(self._threads.map(self._stream_bare, self._bare, self._shares))

    def by_tls_socket(self) -> None:
        list(self._threads.map(self._stream_bare, self._tls, self._shares))

    def ways(self) -> dict[str, Callable[[], None]]:
        """What is measured; the second one is its noise, the first one what it is compared with."""
        if self._pair is None:
            return {"socket": self.by_socket, "socket again": self.by_socket, "kvpool": self.by_kvpool}
        secure = {"TLS socket": self.by_tls_socket, "TLS socket again": self.by_tls_socket}
        return {**secure, "kvpool over TLS": self.by_kvpool, "socket in clear": self.by_socket}

    def handshakes(self, count: int) -> None:
        if self._pair is not None:
            secured.handshakes(self._pair, int(self._address.rpartition(":")[2]), count, self.cpu_seconds)

    def by_kvpool(self) -> None:
        list(self._threads.map(self._fetch, self._shares))

    def _stream_bare(self, connection: socket.socket, share: range) -> None:
        connection.sendall(SHARE.pack(share.start, len(share)))
        for i in share:
            view, done = self._views[i], 0
            while done < len(view):
                done += connection.recv_into(view[done:])

    def _fetch(self, share: range) -> None:
        keys, landed = self._keys[share.start : share.stop], 0

        def land(index: int, tag: bytes, length: int, read_into: Callable[[memoryview], None]) -> None:
            nonlocal landed
            view = self._views[share[index]]
            assert length == len(view)
            read_into(view)
            if tag_of(keys[index], view) != tag:
                raise SystemExit("a block's bytes don't match their tag")
            landed += 1

        self._dialer.fetch(self._address, FORMAT, keys, "demand", time.monotonic() + 60, land)
        assert landed == len(share), "not every block came"

    def cpu_seconds(self) -> float:
        """Of both processes."""
        return cpu_seconds() + self._cpu_of_source()

    def _cpu_of_source(self) -> float:
        self._pipe.send(True)
        return float(self._pipe.recv())

    def close(self) -> None:
        for connection in (*self._bare, *self._tls):
            connection.close()
        self._dialer.close()
        self._pipe.send(False)
        self._process.join(10)


class Peer:
    """Another store's program (peers/*_turns.py)."""

    def __init__(self, name: str, size: int, count: int) -> None:
        """Raises OSError with the last line of what it said when it can't be run."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        command = [str(PEERS[name]()), str(HERE / "peers" / f"{name}_turns.py"), str(size), str(count)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self.ways: list[str] = json.loads(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("[", "{")):  # they print to their output too
                return line
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        raise OSError(said.splitlines()[-1] if said else "it ended without a word")

    def turn(self, way: str) -> tuple[float, float]:
        """(seconds, CPU seconds of both ends) of getting all blocks once."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{way}\n")
        self._process.stdin.flush()
        found = json.loads(self._line())
        return found["seconds"], found["cpu"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()


def started(names: Sequence[str], size: int, count: int) -> list[Peer]:
    """Those peers that can be run here; the others are named with the reason."""
    found = []
    for name in names:
        try:
            found.append(Peer(name, size, count))
        except (OSError, SystemExit) as error:
            print(f"{name}: not run: {error}", flush=True)
    return found


def measure(size: int, total: int, streams: int, count: int, peers: Sequence[str], tls: bool) -> None:
    blocks = total // size
    source = Source(blocks, size, streams, tls)
    others = started(peers, size, blocks)
    cpu: dict[str, list[float]] = {}

    def way(name: str, call: Callable[[], None]) -> Callable[[], float]:
        def turn() -> float:
            used = source.cpu_seconds()
            seconds = rounds.timed(call)
            cpu.setdefault(name, []).append(source.cpu_seconds() - used)
            return seconds

        return turn

    def other(peer: Peer, name: str) -> Callable[[], float]:
        def turn() -> float:
            seconds, used = peer.turn(name)
            cpu.setdefault(name, []).append(used)
            return seconds

        return turn

    calls = source.ways()
    first, again, ours, *_ = calls
    ways = {name: way(name, call) for name, call in calls.items()}
    ways |= {name: other(peer, name) for peer in others for name in peer.ways}
    try:
        seconds = rounds.run(ways, count)
        source.handshakes(10 * count)
    finally:
        source.close()
        for peer in others:
            peer.close()
    gigabytes = blocks * size / 1e9
    label = f"{size // MIB:2d} MiB, {streams} stream{'s'[: streams > 1]}"
    for name, taken in seconds.items():
        rate, cost = gigabytes / statistics.median(taken), statistics.median(cpu[name][1:]) / gigabytes
        compared = "" if name == first else f"  {rounds.ratio(seconds[first], taken)} of the {first}"
        noise = ", noise" if name == again else ""
        print(f"{label:18} {name:18} {rate:5.2f} GB/s {cost:5.2f} CPU-s/GB{compared}{noise}", flush=True)
    for name in ways:
        if name not in calls:
            print(f"{label:18} kvpool / {name}: {rounds.ratio(seconds[name], seconds[ours])}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds: to see that it works")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--tls", action="store_true", help="inside TLS, against a TLS socket")
    parser.add_argument("--peers", action="store_true", help="Mooncake and LMCache too, in the rounds of one stream")
    parser.add_argument("--rdma", action="store_true", help="reads by RDMA against ib_read_bw, and nothing else")
    options = parser.parse_args()
    if options.rdma and (missing := by_rdma.lacks()):
        parser.error(f"--rdma needs {missing}")
    count = 3 if options.quick else options.rounds
    if options.peers:
        for prepared in PEERS.values():
            try:
                prepared()
            except SystemExit as error:  # named again, and left out, where it is started
                print(error, flush=True)
    print(f"{options.megabytes} MiB a round, {count} rounds; {rounds.machine()}", flush=True)
    if options.rdma:
        for size in (MIB // 2, 2 * MIB):
            by_rdma.measure(size, options.megabytes * MIB, count)
        return
    for size in (2 * MIB, 16 * MIB):
        for streams in options.streams:
            others = list(PEERS) if options.peers and streams == 1 else []
            measure(size, options.megabytes * MIB, streams, count, others, options.tls)


if __name__ == "__main__":
    main()
