"""Engines whose clients are of an earlier version, as in pods whose agents alone were updated in place. Part of `make
soak`."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import earlier
import pytest
from engine.forged import Forge, forged_pool
from engine.measured import BLOCK, ask, by_source, prompt
from engine.two_replicas import two_replicas
from replica import Pool, Tools

BLOCKS, TAIL = 3, 17


@pytest.fixture(scope="module")
def pool(forge: Forge, tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Replicas A and B, with agents of today."""
    folder = tmp_path_factory.mktemp("earlier")
    made = forged_pool(forge, tools, folder / "pool")
    made.client = install(tools, folder)
    with two_replicas(made):
        yield made


def install(tools: Tools, folder: Path) -> Path:
    """The folder with the earlier plug-in."""
    environment = {**os.environ, "PYTHONPATH": str(earlier.unpack(folder))}
    command = [str(tools.agent_python), "-m", "kvpool_client.install", str(folder / "client")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return folder / "client"


def test_engines_with_clients_of_an_earlier_version_share_beside_agents_of_today(pool: Pool) -> None:
    a, b = pool.replicas
    assert not list(pool.client.rglob("timing.py"))  # which today's client has
    tokens = prompt(9900, BLOCKS * BLOCK + TAIL)
    assert ask(a, tokens).tokens == by_source(computed=BLOCKS * BLOCK + TAIL)
    local = ask(a, tokens)
    assert local.tokens == by_source(device=BLOCKS * BLOCK, computed=TAIL)
    shared = ask(b, tokens)
    assert shared.tokens == by_source(pool=BLOCKS * BLOCK, computed=TAIL)
    assert shared.answer == local.answer
