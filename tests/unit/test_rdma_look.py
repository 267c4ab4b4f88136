"""Devices are looked for in a process of its own, and where the kernel has none in no process at all."""

import errno
import json
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvpool_agent.peer.rdma import nic, node
from kvpool_agent.peer.rdma.verbs import of_error
from kvpool_agent.peer.rdma.words import RdmaError
from kvpool_contract.names import IPC_LOCK_VARIABLE


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The processes that were asked; each says that it can open mlx5_0."""
    made: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        made.append(command)
        found = {"devices": ["mlx5_0"], "reason": "", "detail": ""}
        return subprocess.CompletedProcess(command, 0, json.dumps(found).encode())

    monkeypatch.setattr(nic.subprocess, "run", run)
    return made


@pytest.mark.parametrize("loaded", [True, False], ids=["no device", "no RDMA in the kernel"])
def test_where_the_kernel_has_no_device_no_process_is_started(
    loaded: bool, tmp_path: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "SYSTEM_DEVICES", tmp_path if loaded else tmp_path / "absent")
    with pytest.raises(RdmaError) as told:
        nic.look()
    assert (told.value.reason, started) == ("rdma_no_device", [])


def test_where_it_has_one_a_process_says_whether_it_can_be_used(
    tmp_path: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlx5_0").mkdir()
    monkeypatch.setattr(node, "SYSTEM_DEVICES", tmp_path)
    assert (nic.look(), len(started)) == (["mlx5_0"], 1)


class VerbError(Exception):
    """As pyverbs tells it."""

    def __init__(self, error_code: int) -> None:
        super().__init__("Failed to register a MR")
        self.error_code = error_code


@pytest.mark.parametrize(
    ("limit", "length", "figures"),
    [
        (4 << 20, 8 << 20, "the limit is 4194304 bytes, and 8388608 were to be registered"),
        (4 << 20, 0, "the limit is 4194304 bytes"),
        (resource.RLIM_INFINITY, 8 << 20, "there is no limit, and 8388608 were to be registered"),
    ],
)
def test_what_could_not_be_locked_is_told_with_its_figures(
    monkeypatch: pytest.MonkeyPatch, limit: int, length: int, figures: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit, limit))
    told = of_error(VerbError(errno.ENOMEM), length)
    assert (told.reason, told.detail) == ("rdma_memlock", f"{figures}: Failed to register a MR")
    assert of_error(VerbError(errno.EINVAL), length).reason == "rdma_failed"


def test_where_the_pool_wanted_the_limit_lifted_what_was_against_it_is_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (4096, 4096))
    monkeypatch.setenv(IPC_LOCK_VARIABLE, "rdma_ipc_lock_namespace")
    told = of_error(VerbError(errno.ENOMEM), 8192)
    assert told.reason == "rdma_ipc_lock_namespace"
    assert told.detail.startswith("the limit is 4096 bytes, and 8192 were to be registered")
    assert of_error(VerbError(errno.EINVAL)).reason == "rdma_failed"
