"""What the images are made of is pinned with hashes, fits pyproject.toml, and an audit that got no answer says so."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "hack"))

import lock  # noqa: E402
import prepare  # noqa: E402
import release  # noqa: E402


@pytest.mark.parametrize("part", lock.PARTS)
def test_every_library_of_a_part_is_pinned_with_a_hash_within_its_range(part: str) -> None:
    assert lock.lacking(part) == []
    found = lock.read(part)
    assert len(found) > len(lock.wanted(part))  # also what those need
    for version, hashes in found.values():
        assert version and hashes and all(len(one) == 64 for one in hashes)


def test_a_range_that_the_list_does_not_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "wanted", lambda _part: ["aiohttp>=99", "nobody-has-this"])
    assert lock.lacking("agent") == [
        f"requirements-agent.txt has aiohttp {lock.read('agent')['aiohttp'][0]}, not aiohttp>=99; run hack/lock.py",
        "requirements-agent.txt lacks nobody-has-this; run hack/lock.py",
    ]


@pytest.mark.parametrize("part", lock.PARTS)
def test_images_are_built_from_the_list_by_the_one_script(part: str) -> None:
    text = (REPOSITORY / "images" / f"{part}.Dockerfile").read_text()
    assert f"COPY images/rootfs.sh images/requirements-{part}.txt /source/images/" in text
    assert f"RUN /source/images/rootfs.sh /root-of-image {part}" in text
    # nothing is done beside the script, so what is tested, which it makes, is what ships; but for the distribution's
    # packages, which the test images have as well
    words = [line.split()[0] for line in text.splitlines() if line and not line.startswith(("#", " "))]
    packages = ["RUN"] if part == "agent" else []
    assert words == ["ARG", "FROM", "COPY", "COPY", "COPY", "COPY", "RUN", "FROM", *packages, "COPY", "ENV", "USER"]
    for package in ("python3-pyverbs", "ibverbs-providers") if packages else ():
        assert package in text and package in prepare.DEBIAN_PACKAGES.split(",")
    script = (REPOSITORY / "images" / "rootfs.sh").read_text()
    assert '--no-deps --require-hashes -r "$work/requirements.txt"' in script and script.count("pip install") == 1


def test_the_list_of_an_image_has_its_base_and_the_packages_that_are_added_with_their_versions() -> None:
    texts = {part: (REPOSITORY / "images" / f"{part}.Dockerfile").read_text() for part in lock.PARTS}
    base = ("container", "docker.io/library/python", "3.11-slim-bookworm")
    found = {
        part: [(each["type"], each["name"], each["version"]) for each in release.beside_libraries(text)]
        for part, text in texts.items()
    }
    packages = [("library", name, "44.0-2") for name in ("python3-pyverbs", "ibverbs-providers")]
    assert found == {"agent": [base, *packages], "operator": [base]}
    with pytest.raises(SystemExit, match="ibverbs-providers has no version in the Dockerfile"):
        release.beside_libraries(texts["agent"].replace("ibverbs-providers=44.0-2", "ibverbs-providers"))


def test_make_images_builds_what_the_chart_names() -> None:
    chart = REPOSITORY / "helm" / "kvpool"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    version = yaml.safe_load((chart / "Chart.yaml").read_text())["appVersion"]
    named = [f"r.example/{each['repository']}:{version}" for each in (values["image"], values["agent"]["image"])]
    command = ["make", "-s", "-C", str(REPOSITORY), "images", "DOCKER=echo"]
    built = subprocess.run([*command, "REGISTRY=r.example"], capture_output=True, text=True, check=True).stdout
    found = [line.split() for line in built.splitlines()]
    assert [(line[:3], line[-2:]) for line in found] == [
        (["build", "-f", f"images/{part}.Dockerfile"], [name, "."])
        for part, name in zip(("operator", "agent"), named, strict=True)
    ]
    pinned = f"docker.io/library/python@sha256:{64 * '0'}"
    again = subprocess.run(
        [*command, "REGISTRY=r.example", f"BASE={pinned}"], capture_output=True, text=True, check=True
    )
    assert again.stdout == built.replace("build -f", f"build --build-arg BASE={pinned} -f") != built
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode and "REGISTRY" in refused.stderr


class Service:
    """pip-audit, as it answers for the list and for the control."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, listed: dict[str, Any], control: dict[str, Any]) -> None:
        self._answers = {"listed": listed, "control": control}
        monkeypatch.setattr(release, "tool", str)
        monkeypatch.setattr(subprocess, "run", self._run)

    def _run(self, command: list[str], **_: Any) -> Any:
        target = Path(command[command.index("--output") + 1])
        asked = "control" if Path(command[2]).read_text() == release.CONTROL else "listed"
        if self._answers[asked]:
            target.write_text(json.dumps({"dependencies": [self._answers[asked]]}))
        return subprocess.CompletedProcess(command, 1, "", "a traceback\nConnectionError: nobody there")


GOOD, BAD = {"name": "x", "vulns": []}, {"name": "x", "vulns": [{"id": "CVE-1"}]}
UNKNOWN = {"name": "x", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("listed", "control", "said"),
    [
        (GOOD, BAD, "no known vulnerability in"),
        (GOOD, GOOD, "NOT DONE, the service of known vulnerabilities is no help here: it finds nothing wrong with"),
        (UNKNOWN, BAD, "it does not know 1 of 1 libraries, x among them"),
        ({}, BAD, "NOT DONE, the service of known vulnerabilities is no help here: ConnectionError: nobody there"),
    ],
)
def test_an_audit_without_an_answer_is_not_told_as_a_clean_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listed: dict[str, Any], control: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(release, "DIST", tmp_path)
    Service(monkeypatch, listed, control)
    line = release.audit("agent", release.silence_of_the_service())
    assert said in line
    assert ("NOT DONE" in line) == (not any(tmp_path.iterdir()))  # no answer leaves no file that looks like one


def test_a_known_vulnerability_ends_the_release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(release, "DIST", tmp_path)
    Service(monkeypatch, BAD, BAD)
    with pytest.raises(SystemExit, match=r"known vulnerabilities of agent: {'x': \['CVE-1'\]}"):
        release.audit("agent", release.silence_of_the_service())
