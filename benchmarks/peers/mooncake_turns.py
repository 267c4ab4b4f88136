"""Mooncake's store over TCP on the loopback address: a master, a process that owns the memory, and this client.

    mooncake_turns.py SIZE COUNT    (blocks of SIZE bytes)

Two ways: `get_into` block by block, and `batch_get_into` of all; both into registered memory. Its library loads
libibverbs.so.1 (Debian: libibverbs1) also where only TCP is used.
"""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import mooncake
import numpy
import turns

MIB = 2**20
os.environ.setdefault("MC_TCP_BIND_ADDRESS", "127.0.0.1")
os.environ.setdefault("GLOG_minloglevel", "2")


def store(master: int, segment: int, buffer: int):
    from mooncake.store import MooncakeDistributedStore

    made = MooncakeDistributedStore()
    code = made.setup("127.0.0.1", "P2PHANDSHAKE", segment, buffer, "tcp", "", f"127.0.0.1:{master}")
    if code:
        raise SystemExit(f"Mooncake's setup answered {code}")
    return made


def provide(master: int) -> None:
    """The process that owns the memory; ends when its input does."""
    made = store(master, 1024 * MIB, 64 * MIB)
    print("ready", flush=True)
    sys.stdin.read()
    made.close()


def main(size: int, count: int) -> None:
    rpc, metrics = turns.free_port(), turns.free_port()
    program = Path(mooncake.__path__[0]) / "mooncake_master"
    master = subprocess.Popen(
        [
            str(program), "--rpc_address=127.0.0.1", f"--rpc_port={rpc}", "--metrics_host=127.0.0.1",
            f"--metrics_port={metrics}", "--default_kv_lease_ttl=600000", "--enable_metric_reporting=false",
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(2)
    provider = subprocess.Popen(
        [sys.executable, __file__, "--provide", str(rpc)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        while (line := provider.stdout.readline()) and line.strip() != "ready":
            pass
        client = store(rpc, 0, 512 * MIB)
        memory = numpy.zeros(count * size, dtype=numpy.uint8)
        address = memory.ctypes.data
        client.register_buffer(address, memory.nbytes)
        for i in range(count):
            ctypes.memmove(address + i * size, turns.block(i, size), size)
            if client.put_from(f"b{i}", address + i * size, size):
                raise SystemExit("Mooncake took no block")
        memory[:] = 0
        keys, places = [f"b{i}" for i in range(count)], [address + i * size for i in range(count)]

        def one_by_one() -> None:
            if any(client.get_into(key, place, size) != size for key, place in zip(keys, places, strict=True)):
                raise SystemExit("Mooncake gave no block")

        def batch() -> None:
            if any(got != size for got in client.batch_get_into(keys, places, [size] * count)):
                raise SystemExit("Mooncake gave no block")

        one_by_one()
        for i in range(count):
            turns.check(i, memoryview(memory)[i * size : (i + 1) * size])
        turns.answer({"mooncake get_into": one_by_one, "mooncake batch": batch}, [master.pid, provider.pid])
    finally:
        provider.kill()
        master.kill()
        os._exit(0)  # its threads don't end by themselves


if __name__ == "__main__":
    if sys.argv[1] == "--provide":
        provide(int(sys.argv[2]))
    else:
        main(int(sys.argv[1]), int(sys.argv[2]))
