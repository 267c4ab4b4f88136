"""The first part of gpu_check.py: host pool and arena under a device's copies, with torch and kvpool's client alone.

What a block goes through between a device and the agent is done here with the client's own mappings and copy, and
compared byte for byte: device → row of the host pool (in pieces, a layer each, as an engine does) → slot of the arena →
row → device. The same function runs with `device="cpu"`, where nothing is registered: so that it can be tested.
"""

import ctypes
import mmap
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / "agent"), str(REPOSITORY / "benchmarks")]

import rounds  # noqa: E402

from kvpool_client.memory import ReadOnlyMapping, address_of, copy, reopen_read_only  # noqa: E402

MIB = 2**20
READ_ONLY = 0x08  # cudaHostRegisterReadOnly


@dataclass(frozen=True)
class Shape:
    """Blocks of `size` bytes in `layers` equal pieces."""

    size: int
    blocks: int
    layers: int


class CheckError(RuntimeError):
    """A check that failed, in one sentence."""


class Memory:
    """A host pool and an arena, each of its own descriptor, as engine and agent have them.

    The engine writes its host pool and reads the arena through a mapping without write permission."""

    def __init__(self, torch: Any, shape: Shape) -> None:
        length = shape.blocks * shape.size
        self._pool, pool_map = _file("host-pool", 2 * length)
        self.pool_view = memoryview(pool_map)
        self.pool = torch.frombuffer(pool_map, dtype=torch.uint8).view(2 * shape.blocks, shape.size)
        self.pool_address, self.pool_bytes = address_of(self.pool_view), 2 * length
        arena, arena_map = _file("arena", length)
        self.arena_view = memoryview(arena_map)  # the agent's
        self.arena = ReadOnlyMapping(reopen_read_only(arena), length)
        numbers = (ctypes.c_ubyte * length).from_address(self.arena.address)
        self.arena_tensor = torch.frombuffer(numbers, dtype=torch.uint8).view(shape.blocks, shape.size)


def _file(name: str, length: int) -> tuple[int, mmap.mmap]:
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    os.ftruncate(descriptor, length)
    mapped = mmap.mmap(descriptor, length)
    mapped[:] = bytes(length)  # pages are there before anything is registered or timed
    return descriptor, mapped


def check(torch: Any, device: str, shape: Shape, count: int, say: Callable[[str], None]) -> None:
    """Registers, compares and times; says each result in a line. Raises CheckError."""
    memory = Memory(torch, shape)
    cuda = device.startswith("cuda")
    arena_registered = False
    if cuda:
        code = int(torch.cuda.cudart().cudaHostRegister(memory.pool_address, memory.pool_bytes, 0))
        if code:
            raise CheckError(f"cudaHostRegister of the host pool ({memory.pool_bytes} bytes) answered {code}")
        code = int(torch.cuda.cudart().cudaHostRegister(memory.arena.address, memory.arena.size, READ_ONLY))
        arena_registered = code == 0
        # kvpool copies arena → host pool, so this is a finding and no condition
        said = "registered" if arena_registered else f"not registered, cudaHostRegister answered {code}"
        say(f"host pool registered; arena (mapped read-only) {said}")
    else:
        say(f"nothing to register on the device {device!r}")
    _compare(torch, device, shape, memory, say)
    _time(torch, device, shape, memory, arena_registered, count, say)


def _finish(torch: Any, device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _pieces(tensor: Any, shape: Shape) -> Any:
    return tensor.view(-1, shape.layers, shape.size // shape.layers)


def _move(torch: Any, device: str, source: Any, target: Any, shape: Shape) -> None:
    """Every piece of every block, as an engine's copies do."""
    pieces_from, pieces_to = _pieces(source, shape), _pieces(target, shape)
    for block in range(shape.blocks):
        for layer in range(shape.layers):
            pieces_to[block][layer].copy_(pieces_from[block][layer], non_blocking=True)
    _finish(torch, device)


def _compare(torch: Any, device: str, shape: Shape, memory: Memory, say: Callable[[str], None]) -> None:
    generator = torch.Generator(device="cpu").manual_seed(1)
    numbers = torch.randint(0, 256, (shape.blocks, shape.size), dtype=torch.uint8, generator=generator)
    cache, back = numbers.to(device), torch.zeros((shape.blocks, shape.size), dtype=torch.uint8, device=device)
    stored, loaded = memory.pool[: shape.blocks], memory.pool[shape.blocks :]

    _move(torch, device, cache, stored, shape)
    wrong = int((stored != numbers).sum())
    if wrong:
        raise CheckError(f"{wrong} bytes differ in the host pool after the copies from the device")
    memory.arena_view[:] = memory.pool_view[: shape.blocks * shape.size]  # the agent's copy

    def load() -> int:
        for block in range(shape.blocks):
            row = memory.pool_address + (shape.blocks + block) * shape.size
            copy(row, memory.arena.address + block * shape.size, shape.size)
        _move(torch, device, loaded, back, shape)
        return int((back != cache).sum())

    wrong = load()
    if wrong:
        raise CheckError(f"{wrong} bytes differ on the device after a store and a load")
    memory.arena_view[shape.size // 2] ^= 0xFF
    wrong = load()
    if wrong != 1:
        raise CheckError(f"one byte altered in the arena shows as {wrong}: this comparison can't fail")
    total = shape.blocks * shape.size
    say(f"{total} bytes equal after device → row → slot → row → device; one altered byte is seen")


def _time(
    torch: Any,
    device: str,
    shape: Shape,
    memory: Memory,
    arena_registered: bool,
    count: int,
    say: Callable[[str], None],
) -> None:
    cache = torch.zeros((shape.blocks, shape.size), dtype=torch.uint8, device=device)
    plain = torch.zeros((shape.blocks, shape.size), dtype=torch.uint8, pin_memory=device.startswith("cuda"))
    pool = memory.pool[: shape.blocks]

    def way(source: Any, target: Any) -> Callable[[], float]:
        def turn() -> float:
            _finish(torch, device)
            return rounds.timed(lambda: _rows(torch, device, source, target))

        return turn

    gigabytes = shape.blocks * shape.size / 1e9
    for label, into in (("host → device", True), ("device → host", False)):
        hosts = {"plain pinned": plain, "plain again": plain, "host pool": pool}
        if into and arena_registered:
            hosts["arena"] = memory.arena_tensor
        ways = {name: way(host, cache) if into else way(cache, host) for name, host in hosts.items()}
        found = rounds.run(ways, count)
        for name, seconds in found.items():
            compared = rounds.ratio(found["plain pinned"], seconds)
            against = "" if name == "plain pinned" else f", {compared} of plain pinned"
            say(f"{label}  {name:13} {gigabytes / statistics.median(seconds):6.2f} GB/s{against}")


def _rows(torch: Any, device: str, source: Any, target: Any) -> None:
    for block in range(len(source)):
        target[block].copy_(source[block], non_blocking=True)
    _finish(torch, device)
