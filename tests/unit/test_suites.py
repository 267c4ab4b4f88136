"""What a suite needs and the machine lacks is told in one line, and what runs where."""

import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "hack"))

import prepare  # noqa: E402
import soft_rdma  # noqa: E402
import suites  # noqa: E402

ENGINES = str(Path(suites.ENGINES_BY_RDMA))


@pytest.fixture(autouse=True)
def no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVPOOL_RDMA_DEVICES", raising=False)
    monkeypatch.setattr(suites, "tool", lambda name: name)


def lacking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str) -> str:
    """What is told where the virtual machine can't be made for want of this; nothing is missing where it is empty."""

    def make(path: Path) -> None:
        path.mkdir()
        if missing:
            raise soft_rdma.Unavailable(missing)

    monkeypatch.setenv("KVPOOL_CACHE", str(tmp_path))
    monkeypatch.setattr(soft_rdma, "make", make)
    return suites.rdma_lacks()


@pytest.mark.parametrize(
    "missing",
    ["an x86-64 processor", "packages that apt can fetch (E: a mirror that needs a proxy.)", ""],
    ids=["a word", "a sentence", "nothing"],
)
def test_what_the_virtual_machine_needs_is_told_as_it_was_found_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
) -> None:
    assert lacking(monkeypatch, tmp_path, missing) == missing


def test_what_else_ends_the_preparation_is_told_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed() -> Path:
        raise SystemExit("[prepare] the disk is full")

    monkeypatch.setattr(prepare, "rdma", failed)
    assert suites.rdma_lacks() == "[prepare] the disk is full"


def test_with_devices_of_ones_own_no_machine_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVPOOL_RDMA_DEVICES", "mlx5_0,mlx5_1")
    assert lacking(monkeypatch, tmp_path, "anything") == ""
    assert not any("machine.py" in part for command in suites.rdma().commands for part in command)


def test_engines_whose_rows_go_by_rdma_run_on_this_machine_and_in_one_suite_alone() -> None:
    in_machine, here = suites.rdma().commands
    assert "tests/e2e/rdma/machine.py" in in_machine and here[-1] == ENGINES
    (engine,) = suites.suites("engine")
    elsewhere = [part for file in (ENGINES, *suites.ENGINES_OF_SOAK) for part in ("--ignore", file)]
    assert engine.commands[0][-7:] == ["tests/e2e/engine", *elsewhere]
    makefile = (REPOSITORY / "Makefile").read_text()
    assert all(file in makefile for file in suites.ENGINES_OF_SOAK)
