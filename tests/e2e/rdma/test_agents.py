"""Two whole agents, each with a device and an engine of its own: a request loads by RDMA what the other one has."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_pool import PATIENT, AgentPool, Node
from rdma.member import WAITS
from replica import PATIENCE
from standin_engine import Served, prompt

BLOCKS = 6
SLOW_DEVICES = f"""
if "kvpool_agent.worker" in sys.orig_argv:
    import importlib
    for path, names in {WAITS}.items():
        module = importlib.import_module(path)
        for name in names:
            setattr(module, name, {PATIENCE} * getattr(module, name))
"""
# a worker that is given little of the processor is not hung
SLOW_WORKERS = f"""
if "-c" in sys.orig_argv:  # the supervisor
    from kvpool_agent import supervisor
    supervisor.BEAT_SECONDS *= {PATIENCE}
    supervisor.FIRST_BEAT_SECONDS *= {PATIENCE}
"""


@pytest.fixture(params=[False, True], ids=["in clear", "inside TLS"])
def pool(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[AgentPool]:
    made = AgentPool(tmp_path, tls=request.param, loading={"mode": "Always", "deadlineSeconds": 60.0})
    yield made
    made.stop()


def joined(pool: AgentPool, name: str, device: str) -> Node:
    rdma = {"devices": [device], "allowUnencrypted": True}
    node = pool.node(name, transport={"type": "RDMA", "rdma": rdma}).patched(PATIENT + SLOW_DEVICES + SLOW_WORKERS)
    node.replica.agent_environment["PYTHONPATH"] = os.environ["PYTHONPATH"]  # where pyverbs is, too
    return node.start().attach()


def test_a_request_loads_by_rdma_what_another_agent_has(pool: AgentPool, devices: tuple[str, str]) -> None:
    a, b = joined(pool, "a", devices[0]), joined(pool, "b", devices[1])
    for node in (a, b):
        told = node.until("its device is open", lambda s: s.transport.in_use == "RDMA").transport
        assert (told.type, told.reason) == ("RDMA", "")
        assert [one.state for one in told.devices] == ["ready"]
        assert told.devices[0].registration_seconds > 0
    assert a.engine.serve(prompt("p", BLOCKS)) == Served(computed=BLOCKS)
    a.until_blocks(BLOCKS)
    b.until_sees(a).until_knows(prompt("p", BLOCKS))
    assert b.engine.serve(prompt("p", BLOCKS)) == Served(pool=BLOCKS)
    here, there = b.status(), a.status()
    size = here.arena.used_bytes // BLOCKS
    for moved in (here.transfers["rdma_in"], there.transfers["rdma_out"], here.transfers["demand_in"]):
        assert (moved.blocks, moved.bytes) == (BLOCKS, BLOCKS * size)
    (peer,) = (one for one in here.peers if one.incarnation == there.incarnation)
    assert peer.not_by_rdma == ""
    assert not {word for word in here.counters if word.startswith("fallback_")}
