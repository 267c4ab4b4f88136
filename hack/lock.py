#!/usr/bin/env python3
"""Writes what the images are made of: images/requirements-PART.txt, every library pinned, with the hash of its wheel.

    lock.py            resolve pyproject.toml's ranges anew, for both machines
    lock.py --check    say whether the files fit pyproject.toml's ranges; nothing is fetched

pip itself resolves, with the very options with which images/rootfs.sh installs, and tells the hash that the index gives
for each wheel. Only the standard library is used: this runs with any Python 3.11 that has pip.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PARTS = ("agent", "operator")
MACHINES = ("x86_64", "aarch64")
GLIBC = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
HEAD = "# Made by hack/lock.py from pyproject.toml's extra `{part}`; images/rootfs.sh installs exactly this.\n"


def lock_file(part: str) -> Path:
    return REPOSITORY / "images" / f"requirements-{part}.txt"


def wanted(part: str) -> list[str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return [str(requirement) for requirement in project["optional-dependencies"][part]]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read(part: str) -> dict[str, tuple[str, set[str]]]:
    """Version and SHA-256 hashes of each library of the part's file, by its canonical name."""
    found: dict[str, tuple[str, set[str]]] = {}
    text = lock_file(part).read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition("==")
            version, *options = rest.split()
            found[canonical(name)] = version, {o.removeprefix("--hash=sha256:") for o in options}
    return found


def resolve(part: str, machine: str) -> dict[str, tuple[str, str]]:
    """Version and hash of each library, as pip would take it for this machine; SystemExit with what pip says."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            *(sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--dry-run"),
            *("--ignore-installed", "--report", str(report), "--target", folder, "--only-binary=:all:"),
            *("--implementation", "cp", "--python-version", "3.11"),
            *(word for glibc in GLIBC for word in ("--platform", f"{glibc}_{machine}")),
        ]
        done = subprocess.run([*command, *wanted(part)], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"lock: the part {part} for {machine} can't be resolved:\n{done.stderr[-2000:]}")
        chosen = json.loads(report.read_text())["install"]
    return {
        canonical(item["metadata"]["name"]): (
            item["metadata"]["version"],
            item["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for item in chosen
    }


def write(part: str) -> None:
    versions: dict[str, str] = {}
    hashes: dict[str, set[str]] = {}
    for machine in MACHINES:
        for name, (version, digest) in resolve(part, machine).items():
            if versions.setdefault(name, version) != version:
                raise SystemExit(f"lock: {name} is {versions[name]} for one machine and {version} for another")
            hashes.setdefault(name, set()).add(digest)
    lines = [
        " \\\n    ".join([f"{name}=={versions[name]}", *(f"--hash=sha256:{h}" for h in sorted(hashes[name]))])
        for name in sorted(versions)
    ]
    lock_file(part).write_text(HEAD.format(part=part) + "\n".join(lines) + "\n")
    print(f"{lock_file(part).relative_to(REPOSITORY)}: {len(versions)} libraries")


def lacking(part: str) -> list[str]:
    """A sentence for each library that pyproject.toml asks for and the file does not give within its range."""
    from packaging.requirements import Requirement  # of the development environment

    locked = read(part)
    problems = []
    for line in wanted(part):
        requirement = Requirement(line)
        version, hashes = locked.get(canonical(requirement.name), ("", set()))
        if not version or not hashes:
            problems.append(f"{lock_file(part).name} lacks {requirement.name}; run hack/lock.py")
        elif version not in requirement.specifier:
            problems.append(f"{lock_file(part).name} has {requirement.name} {version}, not {line}; run hack/lock.py")
    return problems


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        problems = [problem for part in PARTS for problem in lacking(part)]
        sys.exit("\n".join(problems) or 0)
    if sys.argv[1:]:
        raise SystemExit(__doc__)
    for part in PARTS:
        write(part)


if __name__ == "__main__":
    main()
