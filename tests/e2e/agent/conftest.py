"""One agent for all tests of a file that leave nothing behind; and local members of one test."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_pool import AgentPool, Node
from local_member import LocalMember
from some_members import Come
from tenant_keys import keyring


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One started agent for tests that leave nothing behind in it."""
    made = AgentPool(tmp_path_factory.mktemp("shared"))
    yield made.node("shared").start()
    made.stop()


@pytest.fixture
def come(tmp_path: Path) -> Iterator[Come]:
    """Starts a member by name; keys: those of its cache namespaces."""
    (tmp_path / "members").touch()
    made: list[LocalMember] = []

    def make(
        name: str, slots: int = 4096, keys: dict[str, Sequence[bytes]] | None = None, **options: Any
    ) -> LocalMember:
        ring = keyring(tmp_path, name, **keys) if keys is not None else None
        member = LocalMember(name, tmp_path / "members", slots, keyring=ring, **options)
        made.append(member.start())
        return member

    yield make
    for member in made:
        member.kill()
