"""The images of the tests, without a registry: the agent's, the operator's, and a bare Debian with the stand-in engine.

Both parts go into the root file system by the script that the Dockerfiles run, so the images that are tested hold
what the shipped ones hold. They have the names that README uses, and so does the engine's, in place of vLLM's own.
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

AGENT_IMAGE = "registry.example/kvpool/agent:0.1.0"
OPERATOR_IMAGE = "registry.example/kvpool/operator:0.1.0"
ENGINE_IMAGE = "docker.io/vllm/vllm-openai:v0.32.0"
STANDIN = ("python3", "/standin/standin_pod.py")
SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def archives(work: Path) -> Iterator[Path]:
    """The images as archives under `work`, one after another: each is removed once it has been taken."""
    pristine = prepared("debian")
    save, archive = _save_image(), work / "image.tar"
    ours = [SEARCH_PATH, "PYTHONPATH=/opt/kvpool"]
    for part, reference in (("agent", AGENT_IMAGE), ("operator", OPERATOR_IMAGE), ("engine", ENGINE_IMAGE)):
        root = work / part
        subprocess.run(["cp", "-a", "--reflink=auto", pristine, root], check=True)
        if part == "engine":
            (root / "standin").mkdir()
            for name in ("standin_engine.py", "standin_http.py", "standin_model.py", "standin_pod.py"):
                shutil.copy(REPOSITORY / "tests" / "e2e" / name, root / "standin")
            save(root, reference, archive, entrypoint=list(STANDIN), env=[SEARCH_PATH])
        else:
            script = REPOSITORY / "images" / "rootfs.sh"
            subprocess.run([script, root, part], check=True, env={**os.environ, "PYTHON": sys.executable})
            save(root, reference, archive, env=ours, user="10001:10001")
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
