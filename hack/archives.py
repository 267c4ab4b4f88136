"""Debian's packages unpacked into a folder: programs for tests, without installing any and without root."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

LINKED_FOLDERS = ("bin", "sbin", "lib")


class Unavailable(Exception):  # noqa: N818 - not a fault of ours
    """This machine can't make it; the message says what is missing."""


def lacks() -> str:
    """What keeps this machine from fetching packages, in one line; empty where nothing does."""
    if subprocess.run(["uname", "-m"], capture_output=True, text=True).stdout.strip() != "x86_64":
        return "an x86-64 processor"
    missing = [name for name in ("apt-get", "apt-cache", "dpkg-deb", "tar") if shutil.which(name) is None]
    return f"the commands {', '.join(missing)} of Debian" if missing else ""


def with_missing_libraries(package: str) -> list[str]:
    """The package and all that it needs and this machine has not installed. Raises Unavailable."""
    done = _apt("install", "--simulate", "--reinstall", "--no-install-recommends", package)
    names = re.findall(r"^Inst (\S+)", done.stdout, re.MULTILINE)
    if done.returncode or package not in names:
        raise Unavailable(f"the package {package} in apt's lists")
    return names


def download(packages: Sequence[str], folder: Path) -> None:
    """Raises Unavailable."""
    done = _apt("download", "-q", *sorted(set(packages)), folder=folder)
    if done.returncode:
        last = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise Unavailable(f"packages that apt can fetch ({last})")


def _apt(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A second time with new lists where there are none, or those name versions of yesterday."""
    command = ["apt-get", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        subprocess.run(["apt-get", "update", "-q"], capture_output=True)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done


def unpack(archives: Path, packages: Sequence[str], root: Path) -> None:
    """With /bin and its like as links into /usr, as Debian has them."""
    for name in LINKED_FOLDERS:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in packages:
        (archive,) = archives.glob(f"{package}_*.deb")
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as reading:
            command = ["tar", "-x", "--keep-directory-symlink", "--no-same-owner", "-C", str(root), "-f", "-"]
            subprocess.run(command, stdin=reading.stdout, check=True)


def library_path(root: Path, *more: str) -> str:
    """Where programs of this folder find their libraries. more: folders below that of the libraries."""
    folders = [root / "usr/lib/x86_64-linux-gnu", root / "lib/x86_64-linux-gnu"]
    return ":".join(str(each) for each in (*folders, *(folders[0] / name for name in more)))
