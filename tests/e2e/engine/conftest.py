"""Fixtures of the engine suite: pools of real agents and real vLLM servers on this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from replica import Pool, Tools

MIB = 2**20


@pytest.fixture(scope="session")
def tools() -> Tools:
    return Tools.prepared()


@pytest.fixture(scope="module")
def pool(request: pytest.FixtureRequest, tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Two replicas, A and B, in the data type that the test's parameter names; each type with another executor."""
    folder: Path = tmp_path_factory.mktemp(f"pool-{request.param}")
    made = Pool(tools, folder, dtype=request.param, executor="mp" if request.param == "float32" else "uni")
    try:
        for name in "AB":
            replica = made.replica(name)
            replica.start_agent()
            replica.start_engine()
            replica.wait_engine()
            replica.wait_ready()
        yield made
    finally:
        made.stop()
