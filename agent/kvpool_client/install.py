"""Copies this package into a folder that the engine has on its PYTHONPATH: `python3 -m kvpool_client.install DIR`.

The folder also gets a `dist-info` with the plug-in entry point: the engine finds plug-ins by scanning every folder
on its path, so nothing has to be installed in its image. The copy is made beside the target and renamed into place
whole, so that an engine never sees half of it, and a second run replaces the first.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from kvpool_client import VERSION

ENTRY_POINTS = "[vllm.general_plugins]\nkvpool = kvpool_client.join:register\n"


def install(target: Path) -> None:
    """Puts the client and its entry point into `target`, which is made if it isn't there."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix=".kvpool-") as name:
        made = Path(name)
        made.chmod(0o755)
        shutil.copytree(
            Path(__file__).parent,
            made / "kvpool_client",
            ignore=shutil.ignore_patterns("__pycache__", "*.pyc"),
        )
        info = made / f"kvpool_client-{VERSION}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kvpool-client\nVersion: {VERSION}\n")
        (info / "entry_points.txt").write_text(ENTRY_POINTS)
        for part in (made / "kvpool_client", info):
            final = target / part.name
            if final.exists():
                shutil.rmtree(final)
            part.rename(final)


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python3 -m kvpool_client.install DIRECTORY")
    install(Path(sys.argv[1]))
    print(f"kvpool client {VERSION} installed in {sys.argv[1]}")


if __name__ == "__main__":
    main()
