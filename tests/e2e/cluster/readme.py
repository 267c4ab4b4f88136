"""What README tells its readers to write and to run, taken from README, so that the two can't drift apart."""

import re
from pathlib import Path

from cluster.provider import REPOSITORY

BUILDS = ("docker ", "make images ")  # images come into the cluster by another way


def section(title: str) -> str:
    """The text under a heading, without it."""
    text = (REPOSITORY / "README.md").read_text()
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert found, f"README has no section {title}"
    return found[1]


def files(title: str) -> dict[str, str]:
    """The YAML blocks by the names in their first lines."""
    blocks = re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", section(title), re.MULTILINE | re.DOTALL)
    return dict(blocks)


def checkout(folder: Path) -> Path:
    """The folder, as README's reader has it for installing: a checkout's, with the files that README shows."""
    for name in ("helm", "crds"):
        (folder / name).symlink_to(REPOSITORY / name)
    for name, text in files("Install").items():
        (folder / name).write_text(text)
    return folder


def commands(title: str) -> list[str]:
    """The indented lines, but for those that build images."""
    lines = [line[4:] for line in section(title).splitlines() if line.startswith("    ")]
    blocks = "".join(files(title).values())
    return [line for line in lines if line not in blocks and not line.startswith(BUILDS)]
