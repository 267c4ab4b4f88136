"""A process that crashes leaves no dump of its memory; one of ours that says nothing does."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PATTERN = Path("/proc/sys/kernel/core_pattern")
CRASH = "import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (-1, -1)); os.abort()"
NO_LIMIT = CRASH.replace("os.abort()", "resource.setrlimit = lambda *_: None; ")
FORBIDDEN = "from kvpool_contract import core_dumps; core_dumps.forbid(); "


def crashed(folder: Path, program: str) -> list[Path]:
    """What lies in the folder after the program has crashed there."""
    paths = str(Path(__file__).resolve().parents[2] / "agent")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env={"PYTHONPATH": paths}, capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGABRT, done.stderr
    return list(folder.iterdir())


def can_dump() -> bool:
    """Whether a crash of this process would leave a file in its folder."""
    import resource

    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    return most != 0 and "/" not in PATTERN.read_text() and "|" not in PATTERN.read_text()


@pytest.mark.skipif(not can_dump(), reason="core dumps of this machine go elsewhere (/proc/sys/kernel/core_pattern)")
def test_also_where_no_limit_is_asked_a_process_that_forbids_it_leaves_no_dump(tmp_path: Path) -> None:
    """As on a node that pipes dumps to a program: the limit is raised again after it was set."""
    for name, program, dumps in (("without", CRASH, 1), ("forbidden", NO_LIMIT + FORBIDDEN + "os.abort()", 0)):
        folder = tmp_path / name
        folder.mkdir()
        assert len(crashed(folder, program)) == dumps, name


SAYS = (
    "import atexit, ctypes, resource, sys; sys.argv = ['it', '--help']; from {module} import main; "
    "atexit.register(lambda: print('AT END', resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3))); "
    "main()"
)


@pytest.mark.parametrize("module", ["kvpool_operator.webhook.__main__", "kvpool_operator.controller.main"])
def test_the_operators_processes_hold_keys_too_and_forbid_it_first(module: str) -> None:
    root = Path(__file__).resolve().parents[2]
    environment = {"PYTHONPATH": f"{root / 'agent'}:{root / 'operator'}"}
    program = SAYS.format(module=module)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "AT END (0, 0) 0", done.stderr


def test_the_limit_holds_for_what_is_started_too() -> None:
    program = FORBIDDEN + (
        "import subprocess, sys; "
        "subprocess.run([sys.executable, '-c', 'import resource; print(resource.getrlimit(resource.RLIMIT_CORE))'])"
    )
    paths = str(Path(__file__).resolve().parents[2] / "agent")
    done = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.stdout.strip() == "(0, 0)"
