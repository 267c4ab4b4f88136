"""The shape of the house: small files, each with a reason, and no drawers for odds and ends."""

import ast
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for part in ("agent", "operator") for path in (REPOSITORY / part).rglob("*.py"))
ALL = SOURCES + sorted(path for part in ("tests", "examples", "hack") for path in (REPOSITORY / part).rglob("*.py"))
MAX_LINES = 400


def test_no_file_is_longer_than_four_hundred_lines() -> None:
    lines = {str(path.relative_to(REPOSITORY)): len(path.read_text().splitlines()) for path in ALL}
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}


@pytest.mark.parametrize("folder", ["agent", "operator"])
def test_the_folders_of_packages_are_no_packages_and_hold_no_tests(folder: str) -> None:
    assert SOURCES
    assert not (REPOSITORY / folder / "__init__.py").exists()
    assert [path.name for path in (REPOSITORY / folder).rglob("test_*.py")] == []


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    drawers = {"utils", "util", "common", "manager", "helpers", "misc"}
    names = {part.removesuffix(".py") for path in SOURCES for part in path.relative_to(REPOSITORY).parts}
    assert names & drawers == set()


def test_every_module_says_why_it_is_there() -> None:
    assert [str(path) for path in SOURCES if path.name != "__main__.py" and not ast.get_docstring(tree(path))] == []


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())
