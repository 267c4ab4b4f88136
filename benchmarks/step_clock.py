"""Writes down how long each step of vLLM's scheduler takes: a plug-in of the engine, in every arm of a comparison.

The engine finds it as it finds kvpool's own client, by a folder on PYTHONPATH with an entry point. A step is one call
of `Scheduler.schedule` and the `update_from_output` that follows it; each goes as one float, in seconds, to the end of
the file that KVPOOL_STEP_CLOCK names. Standard library only: it runs on what the engine's interpreter brings.
"""

import os
import struct
import time
from pathlib import Path
from typing import Any

VARIABLE = "KVPOOL_STEP_CLOCK"
FORMAT = "<d"


def install(folder: Path) -> Path:
    """Makes the folder for the engine's PYTHONPATH."""
    info = folder / "kvpool_step_clock-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvpool-step-clock\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nkvpool_step_clock = kvpool_step_clock:register\n")
    (folder / "kvpool_step_clock.py").write_text(Path(__file__).read_text())
    return folder


def read(path: Path) -> list[float]:
    """Seconds of every step so far."""
    data = path.read_bytes() if path.exists() else b""
    size = struct.calcsize(FORMAT)
    return [value for (value,) in struct.iter_unpack(FORMAT, data[: len(data) - len(data) % size])]


def register() -> None:
    """Entry point of the group vllm.general_plugins."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    from vllm.v1.core.sched.scheduler import Scheduler

    if getattr(Scheduler, "_kvpool_clock", False):
        return
    Scheduler._kvpool_clock = True
    schedule, update = Scheduler.schedule, Scheduler.update_from_output
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    scheduled = 0.0

    def timed_schedule(self: Any, *args: Any, **options: Any) -> Any:
        nonlocal scheduled
        started = time.perf_counter()
        output = schedule(self, *args, **options)
        scheduled = time.perf_counter() - started
        return output

    def timed_update(self: Any, *args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        output = update(self, *args, **options)
        os.write(file, struct.pack(FORMAT, scheduled + time.perf_counter() - started))
        return output

    Scheduler.schedule, Scheduler.update_from_output = timed_schedule, timed_update
