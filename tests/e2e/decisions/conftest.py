"""Members of a pool in the test's process, which tell each other of themselves quickly."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local_member import LocalMember, patient, until_known

from kvpool_agent.directory import members as view


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LocalMember]]:
    patient(monkeypatch)
    monkeypatch.setattr(view, "REFRESH_SECONDS", 0.05)
    seeds = tmp_path / "members"
    seeds.write_text("")
    made: list[LocalMember] = []

    def one(uid: str, *, seed: bool = True, **options: object) -> LocalMember:
        made.append(LocalMember(uid, seeds, **options).start(seed=seed))  # type: ignore[arg-type]
        return made[-1]

    yield one
    for member in made:
        member.kill()


@pytest.fixture
def eight(make: Callable[..., LocalMember]) -> list[LocalMember]:
    found = [make(f"uid-{n}") for n in range(8)]
    until_known(found)
    return found
