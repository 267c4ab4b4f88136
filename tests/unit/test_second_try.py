"""A test that fails by chance runs once more and is named; one that fails twice has failed."""

import io
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack"))

import second_try

STEADY = "def test_steady(): pass\n"
ONCE = """
from pathlib import Path
def test_once():
    mark = Path(__file__).parent / "mark"
    there = mark.exists()
    mark.touch()
    assert there, "a word - and another"
"""
NEVER = "def test_never(): assert False\n"
BROKEN = "import nothing_of_this_name\n"
HOW = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]


def ran(folder: Path, text: str, options: int = len(HOW)) -> tuple[second_try.Ran, str]:
    (folder / "test_it.py").write_text(text)
    out = io.BytesIO()
    found = second_try.run([*HOW, "test_it.py"], options, folder=folder, environment=os.environ, out=out)
    return found, out.getvalue().decode()


def test_what_passes_at_once_runs_once(tmp_path: Path) -> None:
    found, out = ran(tmp_path, STEADY)
    assert found == second_try.Ran(True)
    assert (out.count("1 passed"), "a second time" in out) == (1, False)


def test_what_fails_once_runs_alone_once_more_and_is_named(tmp_path: Path) -> None:
    found, out = ran(tmp_path, STEADY + ONCE)
    assert found == second_try.Ran(True, ("test_it.py::test_once",))
    assert ("1 failed, 1 passed" in out, "\n1 passed" in out) == (True, True)
    assert "== a second time: test_it.py::test_once\n" in out


@pytest.mark.parametrize("text", [NEVER, ONCE + NEVER, BROKEN], ids=["one", "and one by chance", "no module"])
def test_what_fails_twice_has_failed(tmp_path: Path, text: str) -> None:
    assert ran(tmp_path, text)[0] == second_try.Ran(False)


def test_many_failures_and_tests_of_code_alone_get_no_second_time(tmp_path: Path) -> None:
    many = "".join(NEVER.replace("never", f"never_{n}") for n in range(second_try.MOST + 1))
    assert "a second time" not in ran(tmp_path, many)[1]
    found, out = ran(tmp_path, ONCE, options=0)
    assert (found, "a second time" in out) == (second_try.Ran(False), False)


def test_names_are_read_as_pytest_and_a_machines_console_print_them() -> None:
    assert second_try.failed_in(
        "FAILED tests/a.py::test_b[c d-2] - assert 1 == 2\r\n"
        "ERROR tests/a.py::test_e - OSError: FAILED tests/x.py::y\n"
        "ERROR tests/broken.py\n"
        "FAILED tests/a.py::test_b[c d-2] - again\n"
        "FAILED tests/a.py::test_f\r\n"
        "> FAILED tests/a.py::test_g\n"
    ) == ["tests/a.py::test_b[c d-2]", "tests/a.py::test_e", "tests/a.py::test_f"]
