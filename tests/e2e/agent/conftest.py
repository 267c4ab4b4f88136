"""One agent for all tests of a file that leave nothing behind."""

from collections.abc import Iterator

import pytest
from agent_pool import AgentPool, Node


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One started agent for tests that leave nothing behind in it."""
    made = AgentPool(tmp_path_factory.mktemp("shared"))
    yield made.node("shared").start()
    made.stop()
