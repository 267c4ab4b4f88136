"""The two images of the tests, without a registry: the agent's, and a bare Debian that engines run in.

The agent goes into the root file system by the script that the Dockerfile runs, so the image that is tested
holds what the shipped one holds.
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
ENGINE_IMAGE = "kvpool.test/engine:dev"
SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def archives(work: Path) -> Iterator[Path]:
    """Both images as archives under `work`, one after another: each is removed once it has been taken."""
    pristine = prepared("debian")
    root = work / "root"
    subprocess.run(["cp", "-a", "--reflink=auto", pristine, root], check=True)
    script = REPOSITORY / "images" / "agent" / "rootfs.sh"
    subprocess.run([script, root], check=True, env={**os.environ, "PYTHON": sys.executable})
    save, archive = _save_image(), work / "image.tar"
    for folder, reference, environment, user in (
        (root, AGENT_IMAGE, [SEARCH_PATH, "PYTHONPATH=/opt/kvpool"], "10001:10001"),
        (pristine, ENGINE_IMAGE, [SEARCH_PATH], ""),
    ):
        save(folder, reference, archive, env=environment, user=user)
        yield archive
        archive.unlink()
    shutil.rmtree(root)


def _save_image() -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location("testbed_image", testbed() / "image.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    save: Callable[..., Any] = module.save_image
    return save
