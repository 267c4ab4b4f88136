"""A pool of agents for each test that wait long for each other, and their signer."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_pool import AgentPool
from signer import Signer


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[AgentPool]:
    made = AgentPool(tmp_path, patient=True)
    yield made
    made.stop()


@pytest.fixture
def signer(pool: AgentPool) -> Iterator[Signer]:
    made = Signer(pool.pool.authority).start()
    yield made
    made.stop()
