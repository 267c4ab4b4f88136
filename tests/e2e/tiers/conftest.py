"""A pool of real agents for each test, on the loopback address."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_pool import AgentPool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[AgentPool]:
    made = AgentPool(tmp_path)
    yield made
    made.stop()
