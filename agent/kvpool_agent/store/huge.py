"""Transparent huge pages for the arena: each process that maps it asks, and the node's kernel gives them or not."""

import contextlib
import mmap
import re
from pathlib import Path

from kvpool_contract.status import HugePages

SETTING = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
GIVEN = ("always", "within_size", "advise", "force")  # settings with which one who asks is given some
CGROUP, CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def advise(mapping: mmap.mmap) -> None:
    """Asks for them; what comes of it, now or later, `seen` tells."""
    with contextlib.suppress(OSError):  # a kernel that has none
        mapping.madvise(mmap.MADV_HUGEPAGE)


def seen() -> HugePages:
    """How it is where they were asked for."""
    try:
        setting = re.search(r"\[(\w+)\]", SETTING.read_text())
    except OSError:
        setting = None
    reason = "" if setting is not None and setting[1] in GIVEN else "huge_pages_off"
    return HugePages(True, of_container(), reason)


def of_container() -> int:
    """Bytes of this container's shared memory, nearly all of which is the arena, in huge pages; 0 where its kernel does
    not tell (cgroups of version 1)."""
    try:
        (own,) = re.findall(r"^0::/(.*)$", CGROUP.read_text(), re.MULTILINE)
        (told,) = re.findall(r"^shmem_thp (\d+)$", (CGROUPS / own / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):
        return 0
    return int(told)
