"""Fixtures of the engine suite: pools of real agents and real vLLM servers on this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine.forged import Forge, forged_pool
from engine.two_replicas import two_replicas
from replica import Pool, Tools

MIB = 2**20


@pytest.fixture(scope="session")
def tools() -> Tools:
    return Tools.prepared()


@pytest.fixture(scope="session")
def forge(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forge]:
    """What forks engines where their start is not what is tested."""
    made = Forge(tools, tmp_path_factory.mktemp("forge"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def small_models(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models of one shape with different weights."""
    folders = [tmp_path_factory.mktemp("models") / f"m{seed}" for seed in range(2)]
    for seed, folder in enumerate(folders):
        forge.run(Path(__file__).parent / "make_small_model.py", folder, seed)
    return folders


@pytest.fixture(scope="module")
def float32(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Engines that start as a pod's do, by their command."""
    with two_replicas(Pool(tools, tmp_path_factory.mktemp("float32"))) as made:
        yield made


@pytest.fixture(scope="module")
def bfloat16(forge: Forge, tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Forked engines: only what they compute is another thing than above."""
    with two_replicas(forged_pool(forge, tools, tmp_path_factory.mktemp("bfloat16"), dtype="bfloat16")) as made:
        yield made


@pytest.fixture
def pool(request: pytest.FixtureRequest) -> Pool:
    """Replicas A and B in the data type that the test's parameter names, else float32."""
    made: Pool = request.getfixturevalue(getattr(request, "param", "float32"))
    return made
