"""Huge pages for the arena: who asks for them, whether the node gives some, and how many there are."""

from pathlib import Path

import pytest

from kvpool_agent.observe import spaces
from kvpool_agent.store import huge
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slabs
from kvpool_contract.status import HugePages

SIZE = 4 << 20


def flags(memory: ArenaMemory) -> list[str]:
    """What the kernel keeps of a mapping's owner's wishes."""
    _, _, after = Path("/proc/self/smaps").read_text().partition(f"\n{memory.address:x}-")
    return next(line for line in after.splitlines() if line.startswith("VmFlags:")).split()[1:]


@pytest.mark.parametrize("asked", [True, False])
def test_the_kernel_is_asked_where_the_configuration_says_so(asked: bool) -> None:
    if not huge.SETTING.exists():
        pytest.skip("this kernel has no huge pages")
    assert ("hg" in flags(ArenaMemory.anonymous(SIZE, huge_pages=asked))) is asked


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a node's files: its setting, and the container's memory with 6 MiB in huge pages."""
    (tmp_path / "pod").mkdir()
    (tmp_path / "setting").write_text("always within_size [advise] never deny force\n")
    (tmp_path / "cgroup").write_text("0::/pod\n")
    (tmp_path / "pod" / "memory.stat").write_text("shmem 9000000\nanon_thp 2097152\nshmem_thp 6291456\n")
    monkeypatch.setattr(huge, "SETTING", tmp_path / "setting")
    monkeypatch.setattr(huge, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(huge, "CGROUPS", tmp_path)
    return tmp_path


def told(asked: bool = True) -> HugePages:
    return spaces.arena(Slabs(ArenaMemory.anonymous(SIZE, huge_pages=asked), 0.0)).huge_pages


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("always within_size [advise] never deny force", ""),
        ("[always] within_size advise never deny force", ""),
        ("always within_size advise [never] deny force", "huge_pages_off"),
        ("always within_size advise never [deny] force", "huge_pages_off"),
        (None, "huge_pages_off"),
    ],
)
def test_whether_the_node_gives_some_is_told(system: Path, setting: str | None, reason: str) -> None:
    (system / "setting").write_text(setting) if setting else (system / "setting").unlink()
    assert told() == HugePages(True, 6 << 20, reason)


def test_nothing_is_told_where_nobody_asks(system: Path) -> None:
    assert told(asked=False) == HugePages()


@pytest.mark.parametrize("lacks", ["0::/pod", "shmem_thp"])
def test_a_kernel_that_does_not_tell_how_many_there_are_has_none(system: Path, lacks: str) -> None:
    for path in (system / "cgroup", system / "pod" / "memory.stat"):
        path.write_text(path.read_text().replace(lacks, "another"))
    assert told() == HugePages(True, 0, "")
