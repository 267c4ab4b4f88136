"""Cached environments with the peers that a transfer is compared with, outside the checkout.

Exact versions: a comparison names what it was made with. Standard library only.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack"))

import prepare

MOONCAKE = ["mooncake-transfer-engine-non-cuda==0.3.13.post1", "numpy==2.2.6"]
LMCACHE, TORCH = "lmcache==0.5.6", "torch==2.13.0"
# What its lm:// server and protocol import. Its full requirements bring CUDA's libraries, some gigabytes, for the rest.
LMCACHE_NEEDS = [
    "aiofiles", "aiohttp", "cachetools", "msgspec", "numba", "numpy==2.2.6", "prometheus-client", "psutil",
    "py-cpuinfo", "pyyaml", "pyzmq", "requests", "sortedcontainers",
]  # fmt: skip


def mooncake() -> Path:
    """The interpreter of an environment with Mooncake."""

    def make(path: Path) -> None:
        python = prepare.new_environment(path)
        prepare.run("Mooncake", python, "-m", "pip", "install", "-q", *MOONCAKE)

    return prepare.entry(f"peer-mooncake-{prepare.digest(*MOONCAKE)}", make) / "bin" / "python"


def lmcache() -> Path:
    """The interpreter of an environment with LMCache."""

    def make(path: Path) -> None:
        python = prepare.new_environment(path)
        index = os.environ.get("KVPOOL_TORCH_INDEX")
        extra = ["--extra-index-url", index] if index else []
        prepare.run("LMCache", python, "-m", "pip", "install", "-q", *extra, TORCH, *LMCACHE_NEEDS)
        prepare.run("LMCache", python, "-m", "pip", "install", "-q", "--no-deps", LMCACHE)

    name = f"peer-lmcache-{prepare.digest(LMCACHE, TORCH, *LMCACHE_NEEDS)}"
    return prepare.entry(name, make) / "bin" / "python"
