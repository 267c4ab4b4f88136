"""What people look at kvpool with, for tests: Prometheus, and a browser that needs no screen.

Both come as archives of Debian and are unpacked into a folder: installed, the one would start a service, and the other
bring a desktop.
"""

import shutil
from pathlib import Path

import archives

BROWSER, PROMETHEUS = "chromium-headless-shell", "prometheus"


def make(path: Path) -> None:
    """Fills the folder. Raises archives.Unavailable."""
    if missing := archives.lacks():
        raise archives.Unavailable(missing)
    fetched = path / "archives"
    fetched.mkdir(parents=True)
    wanted = [*archives.with_missing_libraries(BROWSER), PROMETHEUS]  # the latter's program needs no library
    archives.download(wanted, fetched)
    archives.unpack(fetched, wanted, path / "root")
    shutil.rmtree(fetched)


def prometheus(path: Path) -> str:
    return str(path / "root/usr/bin/prometheus")


def browser(path: Path) -> tuple[list[str], dict[str, str]]:
    """The beginning of its command line, and what its environment needs beside this one's."""
    program = str(path / "root/usr/lib/chromium" / BROWSER)
    # it looks at this project's own pages alone, and may be root in a container
    options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    return [program, *options], {"LD_LIBRARY_PATH": archives.library_path(path / "root", "pulseaudio")}
