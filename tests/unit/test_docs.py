"""Pages that are made from code say what the code says, and the guarantees name tests that exist."""

import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "hack"))

import write_docs  # noqa: E402


def test_the_table_of_reasons_is_the_contracts() -> None:
    page = write_docs.OPERATIONS.read_text()
    assert write_docs.with_reasons(page) == page, "run: python hack/write_docs.py"


def test_every_guarantee_names_a_test_that_exists() -> None:
    page = (REPOSITORY / "docs" / "guarantees.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) >= 10
    rows = [line for part in page.split("\n\n") if "|---|" in part for line in part.splitlines()]
    for path, test in named:
        assert sum(f"`{path}::{test}`" in row for row in rows) >= 1, f"{test} stands in no table"
    for path, test in named:
        assert f"def {test}(" in (REPOSITORY / path).read_text(), f"{path} has no {test}"


def test_no_link_between_pages_is_dead() -> None:
    for page in [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+\.md)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
