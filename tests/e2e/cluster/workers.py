"""The worker process of a pod's agent, found and killed from the node: what an out-of-memory kill does to
it."""

import contextlib
import os
import signal
from pathlib import Path

WORKER, SUPERVISOR = b"kvpool_agent.worker", b"kvpool_agent"


def find_worker(pod_uid: str) -> int:
    """Process id of the pod's worker, a child of its supervisor; raises OSError while there is none."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and WORKER in _words(folder) and _in_pod(folder, pod_uid):
                parent = folder.parent / _parent(folder)
                assert SUPERVISOR in _words(parent), f"the worker's parent is {_words(parent)}"
                return int(folder.name)
    raise OSError(f"no worker process in pod {pod_uid}")


def kill_worker(pod_uid: str) -> int:
    worker = find_worker(pod_uid)
    os.kill(worker, signal.SIGKILL)
    return worker


def _words(folder: Path) -> list[bytes]:
    return (folder / "cmdline").read_bytes().split(b"\0")


def _parent(folder: Path) -> str:
    return (folder / "stat").read_text().rpartition(")")[2].split()[1]


def _in_pod(folder: Path, pod_uid: str) -> bool:
    """Both cgroup drivers write the pod's id into the path, one of them with underscores."""
    groups = (folder / "cgroup").read_text()
    return pod_uid in groups or pod_uid.replace("-", "_") in groups
