"""What a process of ours loads is what it needs, and our folders shadow nothing of the standard library."""

import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(str(REPOSITORY / part) for part in ("agent", "operator"))


def modules_after(statement: str) -> set[str]:
    """Names of all modules that a fresh interpreter has loaded after the statement."""
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    environment = {"PYTHONPATH": PATHS, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_the_agent_loads_no_operator_no_engine_and_no_rdma() -> None:
    loaded = packages(modules_after("import kvpool_agent.app, kvpool_agent.worker"))
    assert loaded.isdisjoint(
        {"kopf", "kubernetes", "torch", "numpy", "vllm", "pyverbs", "kvpool_operator", "kvpool_cli"}
    )
    assert {"kvpool_agent", "kvpool_client", "kvpool_contract", "aiohttp"} <= loaded


def test_the_webhook_loads_neither_kopf_nor_the_kubernetes_client() -> None:
    loaded = packages(modules_after("import kvpool_operator.webhook.__main__"))
    assert loaded.isdisjoint({"kopf", "kubernetes", "torch", "pyverbs", "kvpool_agent", "kvpool_cli"})
    assert {"kvpool_operator", "kvpool_contract", "aiohttp"} <= loaded


@pytest.mark.parametrize("module", ["session", "join", "loader", "plans", "install"])
def test_the_client_loads_the_standard_library_alone(module: str) -> None:
    loaded = packages(modules_after(f"import kvpool_client.{module}"))
    before = packages(modules_after("pass"))  # what the interpreter's own start-up loads
    assert loaded - before - set(sys.stdlib_module_names) == {"kvpool_client"}


def test_the_supervisor_loads_the_standard_library_alone() -> None:
    loaded = modules_after("import kvpool_agent.supervisor, kvpool_agent.__main__")
    before = packages(modules_after("pass"))
    assert packages(loaded) - before - set(sys.stdlib_module_names) == {"kvpool_agent", "kvpool_contract"}
    assert {name for name in loaded if name.startswith("kvpool")} == {
        "kvpool_agent",
        "kvpool_agent.listen",
        "kvpool_agent.supervisor",
        "kvpool_agent.__main__",
        "kvpool_contract",
        "kvpool_contract.core_dumps",
    }


def test_the_controller_loads_no_agent_no_client_and_no_command() -> None:
    loaded = packages(modules_after("import kvpool_operator.controller.main"))
    assert loaded.isdisjoint({"kvpool_agent", "kvpool_client", "kvpool_cli", "torch", "vllm", "click", "rich"})
    assert {"kopf", "kubernetes", "kvpool_operator", "kvpool_contract"} <= loaded


def brought_by(*extras: str) -> set[str]:
    """Distributions that come with these extras: those that they name, and what these need."""
    given = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found, open_ends = set[str](), [Requirement(line) for extra in extras for line in given[extra]]
    while open_ends:
        requirement = open_ends.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        open_ends += map(Requirement, metadata.requires(name) or [])
    return found


def test_the_command_needs_no_more_than_its_extra_brings() -> None:
    there, of = brought_by("cli"), metadata.packages_distributions()
    absent = {name for name, given in of.items() if there.isdisjoint(map(canonicalize_name, given))}
    assert {"kopf", "pytest", "tokenizers"} <= absent
    every = (REPOSITORY / "operator" / "kvpool_cli").glob("*.py")
    names = [f"kvpool_cli.{path.stem}" for path in every if not path.stem.startswith("__")]
    refused = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(absent)}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import {", ".join([*names, "kvpool_cli.prompts.command"])}"""
    assert {"click", "kubernetes", "kvpool_cli"} <= packages(modules_after(refused))


def test_the_injector_and_what_is_decided_load_no_kubernetes() -> None:
    pure = "kvpool_operator.inject, kvpool_operator.desired.status, kvpool_operator.desired.events"
    assert packages(modules_after(f"import {pure}")).isdisjoint({"kopf", "kubernetes", "aiohttp", "yaml"})


def test_the_operator_folder_shadows_nothing_of_the_standard_library() -> None:
    program = "import operator, sys; print(operator.__file__); print(operator.add(1, 2))"
    environment = {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{PATHS}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=REPOSITORY, capture_output=True, text=True
    )
    file, added = done.stdout.split()
    assert (Path(file).name, added) == ("operator.py", "3")
    assert REPOSITORY not in Path(file).parents
