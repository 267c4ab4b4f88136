#!/usr/bin/env python3
"""Runs the test suites, one after another, and prints how long each took against its budget.

    suites.py check | test | unit | tiers | decisions | engine | security | rdma | cluster

A suite that takes more than one and a half times its budget fails, even when its tests pass. Budgets are for a warm
cache; what a first run fetches and builds is timed apart. The cluster suite runs where it finds a cluster (see
tests/e2e/cluster/conftest.py); else the last line says what it needs, and with CI=true that is a failure. The rdma
suite runs on the devices that KVPOOL_RDMA_DEVICES names, else in a virtual machine; where that can't be had, likewise.
Its last test has real engines, on this machine. Where a few tests of a suite with real parts fail, they run once more;
those that pass then are named at the end as unsteady.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import archives
import prepare
import second_try
import soft_rdma

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("kvpool_contract", "kvpool_client", "kvpool_agent", "kvpool_lab", "kvpool_operator", "kvpool_cli")
CLUSTER_NEEDS = REPOSITORY / "hack" / "cluster_packages.sh"
STORE_NEEDS = REPOSITORY / "hack" / "store_packages.sh"
ENGINES_BY_RDMA = "tests/e2e/engine/test_by_rdma.py"
ENGINES_OF_SOAK = ("tests/e2e/engine/test_earlier_client.py", "tests/e2e/engine/test_calibrated.py")
LAST_OPTION = "--durations=5"  # of how tests are run; which ones follows


@dataclass(frozen=True)
class Suite:
    """A suite's name, its budget in minutes, the commands that make it up, whether they run at the same time, and
    whether nothing but code is in it, so that a test which fails once has failed."""

    name: str
    minutes: float
    commands: list[list[str]]
    together: bool = False
    pure: bool = False


def tool(name: str) -> str:
    return str(prepare.dev() / "bin" / name)


def pytest(*paths: str) -> list[str]:
    return [tool("python"), "-m", "pytest", "-q", "--color=no", LAST_OPTION, *paths]


def rdma() -> Suite:
    tests = pytest("tests/e2e/rdma")
    machine = [tool("python"), "tests/e2e/rdma/machine.py", "--minutes", "9"]
    in_machine = tests if os.environ.get("KVPOOL_RDMA_DEVICES") else [*machine, *tests]
    return Suite("rdma", 6, [in_machine, pytest(ENGINES_BY_RDMA)])


def rdma_lacks() -> str:
    """What keeps this machine from having RDMA devices made of software, in one line; empty where it has some."""
    if os.environ.get("KVPOOL_RDMA_DEVICES"):
        return ""
    try:
        prepare.rdma()
    except SystemExit as missing:
        return str(missing).partition("needs ")[2].rstrip(".") or str(missing)
    return ""


def lint() -> Suite:
    mypy = [tool("mypy"), *(part for package in PACKAGES for part in ("-p", package))]
    return Suite(
        "lint",
        0.75,
        [
            [tool("ruff"), "check", "."],
            [tool("ruff"), "format", "--check", "-q", "."],
            mypy,
            [tool("lint-imports")],
        ],
        pure=True,
    )


def suites(action: str) -> list[Suite]:
    unit = Suite("unit", 1, [pytest("tests/unit", "-n", "2")], pure=True)
    # agents wait more than they compute; engines compute, so no two files of theirs run at a time
    elsewhere = (part for file in (ENGINES_BY_RDMA, *ENGINES_OF_SOAK) for part in ("--ignore", file))
    engine = Suite("engine", 9, [pytest("tests/e2e/engine", *elsewhere)])
    tiers = Suite("tiers", 4, [pytest("tests/e2e/tiers", "-n", "2")])
    decisions = Suite(
        "decisions",
        4,
        [
            pytest("tests/e2e/decisions", "-n", "2", "--dist", "loadfile"),
            pytest("tests/e2e/agent", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"),
        ],
    )
    security = Suite("security", 4, [pytest("tests/e2e/security", "-n", "2", "--dist", "loadfile")])
    # a control plane without nodes and a cluster with nodes, side by side; one that the caller names is one cluster
    installed = "tests/e2e/cluster/installed"
    # a kubelet takes minutes to bring new authorities and keys into pods, an autoscaler to look at its figures twice, a
    # disk to see ten arenas of churn, a newcomer to be held back beyond a deadline, a condition to follow a Secret
    # through three changes, a kubelet to measure what was written: those tests belong to the soak
    of_soak = (
        "test_certificates.py::test_leaves_and_authorities_change_under_load_and_no_load_fails",
        "test_tenant_keys.py",
        "test_own_secrets.py::test_a_secret_that_lacks_an_entry_or_is_of_another_authority_is_named_and_who_runs_goes_on",
        "test_autoscaler.py",
        "test_disk.py",
        "test_storage.py",
        "test_rollout.py::test_where_the_pool_blocks_a_newcomer_waits_beyond_the_deadline_and_not_for_a_source_that_is_silent",
    )
    parts = [
        pytest(installed, *(part for test in of_soak for part in ("--deselect", f"{installed}/{test}"))),
        pytest("tests/e2e/cluster", "--ignore", installed),
    ]
    cluster = Suite("cluster", 12, parts, together=not os.environ.get("KVPOOL_E2E_KUBECONFIG"))
    return {
        "check": [lint(), unit],
        "unit": [unit],
        "tiers": [tiers],
        "decisions": [decisions],
        "engine": [engine],
        "security": [security],
        "rdma": [rdma()],
        "cluster": [cluster],
        "test": [lint(), unit, tiers, decisions, engine, security, rdma(), cluster],
    }[action]


def cluster_lacks() -> str:
    """What the cluster suite needs and this machine lacks, in one line; empty when it can run."""
    if os.environ.get("KVPOOL_E2E_KUBECONFIG"):
        return ""
    testbed = Path(os.environ.get("KVPOOL_TESTBED") or REPOSITORY.parent / "shared" / "testbed")
    if not (testbed / "cluster.py").exists():
        return "KVPOOL_E2E_KUBECONFIG of a cluster, or KVPOOL_TESTBED"
    if os.geteuid() != 0:
        return "root, to start containers"
    return ""


def run(suite: Suite) -> tuple[bool, tuple[str, ...], float]:
    """Whether it passed, the tests that did so the second time, and minutes."""
    print(f"== {suite.name}", flush=True)
    started = time.monotonic()
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of agents start: what they import is compiled once

    def one(command: list[str], out: BinaryIO) -> second_try.Ran:
        options = 0 if suite.pure else command.index(LAST_OPTION) + 1
        return second_try.run(command, options, folder=REPOSITORY, environment=environment, out=out)

    found: list[second_try.Ran] = []
    if suite.together:
        found = run_together(suite.commands, one)
    else:
        for command in suite.commands:
            found.append(one(command, sys.stdout.buffer))
            if not found[-1].passed:
                break
    unsteady = tuple(test for each in found for test in each.unsteady)
    return all(each.passed for each in found), unsteady, (time.monotonic() - started) / 60


def run_together(
    commands: list[list[str]], one: Callable[[list[str], BinaryIO], second_try.Ran]
) -> list[second_try.Ran]:
    """The first one prints as it goes, what the others have printed follows."""
    first, *others = commands
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in others]
        threads = stack.enter_context(ThreadPoolExecutor(len(commands)))
        running = [threads.submit(one, command, log) for command, log in zip(others, logs, strict=True)]
        found = [one(first, sys.stdout.buffer)]
        for process, log in zip(running, logs, strict=True):
            found.append(process.result())
            log.seek(0)
            print(log.read().decode(errors="replace"), flush=True)
    return found


def main() -> None:
    action = sys.argv[1] if len(sys.argv) == 2 else ""
    if action not in ("check", "test", "unit", "tiers", "decisions", "engine", "security", "rdma", "cluster"):
        raise SystemExit(__doc__)
    continuous = os.environ.get("CI") == "true"
    started = time.monotonic()
    chosen = suites(action)
    names = {suite.name for suite in chosen}
    looks = {"rdma": rdma_lacks, "cluster": cluster_lacks}
    lacking = {name: why for name in looks if name in names and (why := looks[name]())}
    if action in ("test", "engine", "cluster") or "rdma" in names - set(lacking):
        if wanting := prepare.preflight():
            raise SystemExit(f"this machine lacks {wanting}.")
        prepare.engine()
        prepare.model()
    if "tiers" in names and os.geteuid() == 0:  # elsewhere its tests say what is missing
        subprocess.run(["bash", str(STORE_NEEDS)], check=True)
    if "decisions" in names and not archives.lacks():
        prepare.viewers()
    if "cluster" in names - set(lacking):
        subprocess.run(["bash", str(CLUSTER_NEEDS)], check=True)
        prepare.debian()
    prepared = (time.monotonic() - started) / 60
    rows, failed = [f"  {'set-up':10} {prepared:6.1f} min"], False
    unsteady: list[str] = []
    for suite in chosen:
        if suite.name in lacking:
            continue
        passed, second, minutes = run(suite)
        unsteady.extend(second)
        late = minutes > 1.5 * suite.minutes
        verdict = "passed" if passed and not late else "FAILED" if not passed else "FAILED: half over its budget"
        rows.append(f"  {suite.name:10} {minutes:6.1f} min of {suite.minutes:g}   {verdict}")
        failed = failed or not passed or late
        if not passed:
            break
    print("\n".join(["", "suites:", *rows]), flush=True)
    for test in unsteady:
        print(f"unsteady, passed the second time: {test}", flush=True)
    for name, why in lacking.items():
        print(f"{name}: not run, needs {why}", flush=True)
        failed = failed or (continuous and not (name == "rdma" and soft_rdma.lacks()))
    sys.exit(failed)


if __name__ == "__main__":
    main()
