#!/usr/bin/env python3
"""README's section on installing with the images that `make images` builds, instead of those that the cluster suite
makes without docker: part of `make soak`.

    DOCKER=docker BASE=… images.py

Needs a docker daemon that has, or can pull, the base image of images/*.Dockerfile, or the one that BASE names, and a
cluster as the cluster suite does. What README pushes to a registry is handed to the cluster's nodes as an archive. The
exit status is 1 when a build or the test fails.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from cluster import images, provider

TEST = "tests/e2e/cluster/installed/test_readme.py"


def lacking(docker: list[str]) -> str:
    """Why it can't be run here; empty when it can."""
    try:
        daemon = subprocess.run([*docker, "version"], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        daemon = None
    if daemon is None or daemon.returncode:
        return "needs a docker daemon that answers: DOCKER names the command"
    return provider.lacking()


def main() -> None:
    docker = shlex.split(os.environ.get("DOCKER") or "docker")
    if reason := lacking(docker):
        print(f"images: not run, {reason}")
        return
    registry = images.AGENT_IMAGE.partition("/")[0]
    command = ["make", "images", f"REGISTRY={registry}", f"DOCKER={shlex.join(docker)}"]
    if base := os.environ.get("BASE"):
        command.append(f"BASE={base}")
    print("images: docker builds them", flush=True)
    subprocess.run(command, cwd=provider.REPOSITORY, check=True)
    with tempfile.TemporaryDirectory(prefix="kvpool-images-") as folder:
        archive = Path(folder) / "built.tar"
        subprocess.run([*docker, "save", "-o", archive, images.OPERATOR_IMAGE, images.AGENT_IMAGE], check=True)
        print(f"images: {archive.stat().st_size / 1e6:.0f} MB, README's installation begins", flush=True)
        test = [sys.executable, "-m", "pytest", "-q", "-rs", TEST]
        environment = {**os.environ, "CI": "true", images.BUILT: str(archive)}
        sys.exit(subprocess.run(test, cwd=provider.REPOSITORY, env=environment).returncode)


if __name__ == "__main__":
    main()
