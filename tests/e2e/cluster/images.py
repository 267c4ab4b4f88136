"""The images of the tests, without a registry: the agent's, the operator's, and a bare Debian that engines run in.

Both parts go into the root file system by the script that the Dockerfiles run, so the images that are tested hold
what the shipped ones hold.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cluster.provider import REPOSITORY, prepared, testbed

AGENT_IMAGE = "kvpool.test/agent:dev"
OPERATOR_IMAGE = "kvpool.test/operator:dev"
ENGINE_IMAGE = "kvpool.test/engine:dev"
SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def archives(work: Path) -> Iterator[Path]:
    """The images as archives under `work`, one after another: each is removed once it has been taken."""
    pristine = prepared("debian")
    save, archive = _save_image(), work / "image.tar"
    ours = [SEARCH_PATH, "PYTHONPATH=/opt/kvpool"]
    for part, reference, environment, user in (
        ("agent", AGENT_IMAGE, ours, "10001:10001"),
        ("operator", OPERATOR_IMAGE, ours, "10001:10001"),
        ("", ENGINE_IMAGE, [SEARCH_PATH], ""),
    ):
        root = pristine
        if part:
            root = work / part
            subprocess.run(["cp", "-a", "--reflink=auto", pristine, root], check=True)
            script = REPOSITORY / "images" / "rootfs.sh"
            subprocess.run([script, root, part], check=True, env={**os.environ, "PYTHON": sys.executable})
        save(root, reference, archive, env=environment, user=user)
        yield archive
        archive.unlink()
        if part:
            shutil.rmtree(root)


def _save_image() -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location("testbed_image", testbed() / "image.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    save: Callable[..., Any] = module.save_image
    return save
