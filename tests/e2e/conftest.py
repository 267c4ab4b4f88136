"""A pool of real agents for each test, on the loopback address, and members of one test's own process. The engine
suite's own `pool` has real engines too."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_pool import AgentPool
from local_member import LocalMember, patient
from some_members import Come
from tenant_keys import keyring


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


@pytest.fixture
def come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Come]:
    """Starts a member by name; keys: those of its cache namespaces."""
    patient(monkeypatch)
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
