"""A signer for the agents of a test's pool."""

from collections.abc import Iterator

import pytest
from agent_pool import AgentPool
from signer import Signer


@pytest.fixture
def signer(pool: AgentPool) -> Iterator[Signer]:
    made = Signer(pool.pool.authority).start()
    yield made
    made.stop()
