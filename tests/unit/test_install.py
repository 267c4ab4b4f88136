"""The client in a plain folder on the path is found as a plug-in, whole, also the second time."""

import os
import subprocess
import sys
from pathlib import Path

from kvpool_client import VERSION
from kvpool_client.install import install

FIND = """
import importlib.metadata as metadata
(found,) = [e for e in metadata.entry_points(group="vllm.general_plugins") if e.name == "kvpool"]
print(found.value, found.dist.version, found.load().__module__)
import kvpool_client.session
print(kvpool_client.session.__file__)
"""


def found_from(folder: Path) -> list[str]:
    """What a bare interpreter with `folder` on its path finds."""
    environment = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-S", "-c", FIND], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_entry_point_is_found_when_the_folder_is_on_the_path(tmp_path: Path) -> None:
    install(tmp_path / "client")
    entry, where = found_from(tmp_path / "client")
    assert entry == f"kvpool_client.join:register {VERSION} kvpool_client.join"
    assert where == str(tmp_path / "client" / "kvpool_client" / "session.py")


def test_a_second_run_replaces_the_first_and_leaves_nothing_else_behind(tmp_path: Path) -> None:
    install(tmp_path)
    stale = tmp_path / "kvpool_client" / "stale.py"
    stale.write_text("old")
    install(tmp_path)
    assert not stale.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kvpool_client", f"kvpool_client-{VERSION}.dist-info"]
    assert not list(tmp_path.rglob("__pycache__"))
    assert len(found_from(tmp_path)) == 2


def test_an_engine_of_another_user_may_read_it(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        install(tmp_path / "client")
    finally:
        os.umask(old)
    for path in (tmp_path / "client").rglob("*"):
        assert path.stat().st_mode & (0o005 if path.is_dir() else 0o004), path
