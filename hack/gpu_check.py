#!/usr/bin/env python3
"""Checks on a machine with a CUDA device what can't be checked without one: make gpu-check, under five minutes.

    gpu_check.py [--device cuda] [--mebibytes 512] [--rounds 20] [--model PATH] [--engine-arguments "…"] [--no-engine]

1. With torch alone: host pool and arena registered with the device, copies between rows and device compared byte for
   byte, GB/s beside plain pinned memory (gpu_memory.py).
2. Where this interpreter has a stock CUDA vLLM too: attach, reuse, fidelity, a killed worker (gpu_engine.py), then the
   price of joining (benchmarks/tax.py).

Run it with the interpreter that has torch, and vLLM: `make gpu-check GPU_PYTHON=/path/to/python`. The model for the
second part is --model, a folder; else the demo's, which has to be fetched and converted. The agents' environment is
--agent-python, else one that hack/prepare.py makes. Without a device it ends with one sentence and exit status 1.
"""

import argparse
import importlib
import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gpu_memory
import prepare

HACK = Path(__file__).resolve().parent
SHAPES = ((2, 32), (16, 32))  # MiB of a block, and its layers
# two or three servers share the device, and each wants its part of it free when it starts
ENGINE_ARGUMENTS = "--gpu-memory-utilization 0.2"


def say(text: str) -> None:
    print(f"  {text}", flush=True)


def import_torch(device: str) -> Any:
    """torch, where it has the device; ends with one sentence where it hasn't."""
    if importlib.util.find_spec("torch") is None:
        raise SystemExit(f"gpu-check: {sys.executable} has no torch; name one that has: make gpu-check GPU_PYTHON=…")
    torch = importlib.import_module("torch")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit(f"gpu-check: no CUDA device here (torch {torch.__version__} sees none); nothing was checked.")
    return torch


def engine_lacks(device: str) -> str:
    """Why the engine part can't run in this interpreter; empty when it can."""
    if importlib.util.find_spec("vllm") is None:
        return f"{sys.executable} has no vLLM"
    platform = importlib.import_module("vllm.platforms").current_platform
    if platform.device_type != device.partition(":")[0]:
        return f"this vLLM runs on {platform.device_type}"
    return ""


def check_engine(options: argparse.Namespace) -> None:
    """Runs the second part; ends with the reason when it fails."""
    python = options.agent_python or prepare.dev() / "bin" / "python"
    model = options.model or prepare.model()
    command = [
        "--engine-python", sys.executable, "--model", str(model), "--dtype", "bfloat16",
        f"--engine-arguments={options.engine_arguments}",
    ]  # fmt: skip
    for script in ([str(HACK / "gpu_engine.py")], [str(HACK.parent / "benchmarks/tax.py"), "--starts", "1"]):
        print(f"== {Path(script[0]).stem}", flush=True)
        if subprocess.run([str(python), *script, *command]).returncode:
            raise SystemExit(f"gpu-check failed in {Path(script[0]).name}; its reason stands above")


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--mebibytes", type=at_least_one, default=512, help="of blocks; the host pool has twice that")
    parser.add_argument("--rounds", type=at_least_one, default=20)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--agent-python", type=Path)
    parser.add_argument("--engine-arguments", default=ENGINE_ARGUMENTS)
    parser.add_argument("--no-engine", action="store_true")
    options = parser.parse_args()
    torch = import_torch(options.device)
    name = torch.cuda.get_device_name(0) if options.device.startswith("cuda") else options.device
    began = time.monotonic()
    print(f"gpu-check on {name}, torch {torch.__version__}, Python {sys.version.split()[0]}", flush=True)
    for mebibytes, layers in SHAPES:
        blocks = max(1, options.mebibytes // mebibytes)
        print(f"== memory: {blocks} blocks of {mebibytes} MiB in {layers} pieces", flush=True)
        shape = gpu_memory.Shape(mebibytes * gpu_memory.MIB, blocks, layers)
        try:
            gpu_memory.check(torch, options.device, shape, options.rounds, say)
        except gpu_memory.CheckError as error:
            raise SystemExit(f"gpu-check failed: {error}") from None
    lacking = "--no-engine was given" if options.no_engine else engine_lacks(options.device)
    if lacking:
        print(f"== engine: not run: {lacking}", flush=True)
    else:
        check_engine(options)
    print(f"gpu-check passed after {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
