"""A pool of real agents for each test, on the loopback address. The engine suite's own `pool` has real engines too."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_pool import AgentPool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[AgentPool]:
    made = AgentPool(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def pool_in_clear(tmp_path: Path) -> Iterator[AgentPool]:
    """Its agents talk without TLS."""
    made = AgentPool(tmp_path, tls=False)
    yield made
    made.stop()
