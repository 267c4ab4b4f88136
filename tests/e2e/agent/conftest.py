"""A pool of real agents for each test, on the loopback address."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_pool import AgentPool, Node


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[AgentPool]:
    made = AgentPool(tmp_path)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One started agent for tests that leave nothing behind in it."""
    made = AgentPool(tmp_path_factory.mktemp("shared"))
    yield made.node("shared").start()
    made.stop()
