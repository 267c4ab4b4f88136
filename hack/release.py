#!/usr/bin/env python3
"""Makes what a release consists of in dist/, and says what was checked: `make release`.

The wheel; for each image part a list of what is in it (CycloneDX: libraries, the Debian packages that its Dockerfile
adds, and the base image by its name, whose own packages are not listed) and, where the service can be reached, the
answer of an audit of the libraries against known vulnerabilities. Before that each part is installed as the images
install it, by hash, and what came out is compared with the list: a library too many or too few ends the release. So
does a vulnerability.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import lock
import prepare

DIST = lock.REPOSITORY / "dist"
OURS = "kvpool"
CONTROL = "aiohttp==3.9.1"  # CVE-2024-23334: a service that does not find it finds nothing else either
ANSWER_SECONDS = 120


def tool(name: str) -> str:
    return str(prepare.release() / "bin" / name)


def wheel() -> None:
    command = [tool("python"), "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(DIST), str(lock.REPOSITORY)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def installed(part: str) -> dict[str, str]:
    """Versions by name of what the images' script puts into an empty root file system."""
    with tempfile.TemporaryDirectory(prefix="kvpool-release-") as root:
        script = str(lock.REPOSITORY / "images" / "rootfs.sh")
        environment = {**os.environ, "PYTHON": tool("python")}
        done = subprocess.run(["sh", script, root, part], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"release: the part {part} can't be installed:\n{done.stderr[-2000:]}")
        folders = (Path(root) / "opt" / "kvpool").glob("*.dist-info")
        pairs = (folder.name.removesuffix(".dist-info").rsplit("-", 1) for folder in folders)
        return {lock.canonical(name): version for name, version in pairs}


def difference(part: str) -> str:
    """How what is installed differs from the list; empty where it does not."""
    found = installed(part)
    found.pop(OURS)
    listed = {name: version for name, (version, _) in lock.read(part).items()}
    return ", ".join(
        f"{name} {found.get(name, 'not installed')} (listed: {listed.get(name, 'not at all')})"
        for name in sorted({*found, *listed})
        if found.get(name) != listed.get(name)
    )


def bill_of_materials(part: str) -> Path:
    target = DIST / f"{OURS}-{part}.cdx.json"
    command = [
        *(tool("cyclonedx-py"), "requirements", str(lock.lock_file(part)), "--output-reproducible"),
        *("--pyproject", str(lock.REPOSITORY / "pyproject.toml"), "--mc-type", "application"),
        *("--output-format", "JSON", "--output-file", str(target)),
    ]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    document = json.loads(target.read_text())
    document["components"] += beside_libraries((lock.REPOSITORY / "images" / f"{part}.Dockerfile").read_text())
    target.write_text(json.dumps(document, indent=2) + "\n")
    return target


def beside_libraries(dockerfile: str) -> list[dict[str, str]]:
    """Components of an image besides its libraries: its base, and Debian packages, which must have versions."""
    (base,) = re.findall(r"^ARG BASE=(\S+)$", dockerfile, re.MULTILINE)
    name, _, tag = base.rpartition(":")
    found = [{"type": "container", "name": name, "version": tag, "bom-ref": base}]
    for line in re.findall(r"apt-get install -y --no-install-recommends (.+) \\$", dockerfile, re.MULTILINE):
        for package in line.split():
            name, _, version = package.partition("=")
            if not version:
                raise SystemExit(f"release: {name} has no version in the Dockerfile; write {name}=VERSION")
            url = f"pkg:deb/debian/{name}@{version}?distro=bookworm"
            found.append({"type": "library", "name": name, "version": version, "purl": url, "bom-ref": url})
    return found


def asked(requirements: str, target: Path) -> tuple[dict[str, list[str]], str]:
    """(names of the vulnerabilities by library, why there is no answer); a library that the service does not know is
    no library without vulnerabilities."""
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "requirements.txt"
        listed.write_text(requirements)
        command = [
            *(tool("pip-audit"), "-r", str(listed), "--no-deps", "--disable-pip", "--progress-spinner", "off"),
            *("--timeout", "10", "--format", "json", "--output", str(target)),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            return {}, f"no answer within {ANSWER_SECONDS} s"
    if not target.exists():
        return {}, (done.stderr.strip().splitlines() or ["nothing said"])[-1][:120]
    answers = json.loads(target.read_text())["dependencies"]
    if unknown := [answer["name"] for answer in answers if "skip_reason" in answer]:
        return {}, f"it does not know {len(unknown)} of {len(answers)} libraries, {unknown[0]} among them"
    return {answer["name"]: [v["id"] for v in answer["vulns"]] for answer in answers if answer["vulns"]}, ""


def silence_of_the_service() -> str:
    """Why the service of known vulnerabilities is no help here; empty where it finds what is known to be one."""
    with tempfile.TemporaryDirectory() as folder:
        known, silence = asked(CONTROL, Path(folder) / "control.json")
    return silence or ("" if known else f"it finds nothing wrong with {CONTROL}, which is known to be vulnerable")


def audit(part: str, silence: str) -> str:
    """What came of it, in one line; SystemExit for a known vulnerability."""
    target = DIST / f"{OURS}-{part}-audit.json"
    pinned = [f"{name}=={version}" for name, (version, _) in lock.read(part).items()]
    if not silence:
        found, silence = asked("\n".join(pinned), target)
        if found:
            raise SystemExit(
                f"release: known vulnerabilities of {part}: {found}; raise the versions, then run hack/lock.py"
            )
    if silence:
        target.unlink(missing_ok=True)
        return f"audit of {part}: NOT DONE, the service of known vulnerabilities is no help here: {silence}"
    return f"audit of {part}: no known vulnerability in {len(pinned)} libraries"


def main() -> None:
    if problems := [problem for part in lock.PARTS for problem in lock.lacking(part)]:
        raise SystemExit("release: " + "; ".join(problems))
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    prepare.say("building the wheel")
    wheel()
    prepare.say("asking the service of known vulnerabilities for one that is known")
    silence = silence_of_the_service()
    said = []
    for part in lock.PARTS:
        prepare.say(f"installing the part {part} as its image does, and listing it")
        if found := difference(part):
            raise SystemExit(f"release: what is installed for {part} is not what is listed: {found}")
        said.append(
            f"{part}: {len(lock.read(part))} libraries, each installed by its hash; {bill_of_materials(part).name}"
        )
        said.append(audit(part, silence))
    files = sorted(path for path in DIST.iterdir() if path.is_file())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (DIST / "SHA256SUMS").write_text("".join(sums))
    print("\n".join([*said, f"dist/: {', '.join(path.name for path in files)}, SHA256SUMS"]))


if __name__ == "__main__":
    sys.exit(main())
