"""gpu-check without a device ends with one sentence and a status that is not 0; the benchmarks' figures are right."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

import rounds  # noqa: E402


def gpu_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "hack/gpu_check.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_without_torch_it_says_so_in_one_sentence() -> None:
    done = gpu_check()
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        f"gpu-check: {sys.executable} has no torch; name one that has: make gpu-check GPU_PYTHON=…\n"
    )


@pytest.mark.parametrize("field", ["--rounds", "--mebibytes"])
def test_a_number_below_one_is_refused_by_name(field: str) -> None:
    done = gpu_check(field, "0")
    assert done.returncode == 2
    assert f"argument {field}: 0 is below 1" in done.stderr


def test_ratios_are_of_each_round_and_not_of_the_medians() -> None:
    slow, fast = [4.0, 40.0, 400.0, 4.0], [1.0, 20.0, 400.0, 2.0]
    assert rounds.ratio(slow, fast) == "2.000 (quartiles 2.000 to 4.000)"
    assert rounds.p99([float(i) for i in range(200)]) == 198.0
    assert rounds.p99([3.0, 1.0]) == 3.0


def test_every_way_runs_once_a_round_and_the_first_rounds_warm_up() -> None:
    calls: list[str] = []

    def way(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    found = rounds.run({"a": lambda: way("a"), "b": lambda: way("b")}, 6, warm_up=2)
    assert [sorted(calls[i : i + 2]) for i in range(0, 16, 2)] == [["a", "b"]] * 8
    assert len({tuple(calls[i : i + 2]) for i in range(0, 16, 2)}) == 2, "the order never changed"
    assert sorted(found["a"] + found["b"]) == [float(i) for i in range(5, 17)]


def test_a_ratio_of_quantiles_is_told_with_how_sure_it_is() -> None:
    assert str(rounds.quantile_ratio([4.0] * 9, [2.0] * 9, 0.5)) == "2.00 (2.00 to 2.00)"
    same = [1.0] * 50 + [3.0] * 50
    found = rounds.quantile_ratio(same, same, 0.5)
    assert (found.low, found.middle, found.high) == (1 / 3, 1.0, 3.0)
