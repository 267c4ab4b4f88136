"""An earlier version of the agent and its client, out of the repository's history."""

import io
import subprocess
import tarfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
# a commit that speaks a version in common with this one on every protocol, between agents, with the controller, with
# the engine's client, and of the configuration
COMMIT = "b0ffe60"


def unpack(folder: Path) -> Path:
    """Makes a folder under this one with the packages."""
    done = subprocess.run(["git", "-C", str(REPOSITORY), "archive", COMMIT, "agent"], capture_output=True)
    assert done.returncode == 0, f"the earlier agent needs the history of the repository: {done.stderr.decode()}"
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as found:
        found.extractall(folder, filter="data")
    return folder / "agent"
