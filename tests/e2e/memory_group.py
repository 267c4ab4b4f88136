"""A memory cgroup of its own for processes of a test, of version 1 or 2, as a container runtime makes one."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

ONE, TWO = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
LACKING = "this test makes a memory cgroup: it needs root and the memory controller"


@dataclass(frozen=True)
class MemoryGroup:
    folder: Path

    @property
    def joining(self) -> str:
        """Python that puts its process there."""
        return f"import os; open('{self.folder}/cgroup.procs', 'w').write(str(os.getpid()))"

    @property
    def kills(self) -> int:
        """Processes that were ended because the limit left nothing to take back."""
        file = next(file for name in ("memory.oom_control", "memory.events") if (file := self.folder / name).exists())
        return int(dict(line.split() for line in file.read_text().splitlines())["oom_kill"])

    @property
    def reached(self) -> int:
        """The most bytes that were ever charged to it, those of the page cache among them."""
        names = ("memory.max_usage_in_bytes", "memory.peak")
        return int(next(file for name in names if (file := self.folder / name).exists()).read_text())


@contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup]:
    """limit: in bytes. Its processes must have ended when this does."""
    parent, file = (ONE, "memory.limit_in_bytes") if ONE.is_dir() else (TWO, "memory.max")
    folder = parent / f"kvpool-test-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
        (folder / file).write_text(str(limit))
    except OSError:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(LACKING)
    try:
        yield MemoryGroup(folder)
    finally:
        folder.rmdir()
