"""gpu-check as far as it goes without a device: its comparison, on the CPU, by the same function."""

import subprocess
from pathlib import Path

from replica import Tools

HACK = Path(__file__).resolve().parents[3] / "hack"
# a copy that leaves out a block's last byte, in place of the client's
BROKEN = """
import sys
sys.path.insert(0, sys.argv[1])
import gpu_memory, torch
whole = gpu_memory.copy
gpu_memory.copy = lambda target, source, length: whole(target, source, length - 1)
try:
    gpu_memory.check(torch, "cpu", gpu_memory.Shape(64 << 10, 300, 32), 1, print)
except gpu_memory.CheckError as error:
    raise SystemExit(str(error))
"""


def run(tools: Tools, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(tools.engine_python), *arguments], capture_output=True, text=True)


def test_without_a_device_it_ends_with_one_sentence(tools: Tools) -> None:
    done = run(tools, str(HACK / "gpu_check.py"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("gpu-check: no CUDA device here")
    assert done.stderr.count("\n") == 1


def test_every_byte_is_compared_on_the_cpu_too(tools: Tools) -> None:
    done = run(
        tools, str(HACK / "gpu_check.py"), *["--device", "cpu", "--mebibytes", "32", "--rounds", "1", "--no-engine"]
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"{32 << 20} bytes equal after device → row → slot → row → device") == 2
    assert "engine: not run: --no-engine was given" in done.stdout


def test_a_copy_that_leaves_out_a_byte_is_seen(tools: Tools) -> None:
    done = run(tools, "-c", BROKEN, str(HACK))
    assert done.returncode == 1
    count = int(done.stderr.split()[0])
    assert 250 < count <= 300, "of 300 last bytes, about one in 256 is 0 as the untouched one"
    assert "bytes differ on the device after a store and a load" in done.stderr
