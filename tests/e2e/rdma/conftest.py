"""Two RDMA devices that can reach each other.

KVPOOL_RDMA_DEVICES names them, such as mlx5_0,mlx5_1; machine.py gives two made of software.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from replica import PATIENCE

from kvpool_agent.peer.rdma import nic, transport

DEVICES = [name for name in os.environ.get("KVPOOL_RDMA_DEVICES", "").split(",") if name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and len(DEVICES) != 2:
            item.add_marker(pytest.mark.skip(reason="KVPOOL_RDMA_DEVICES names no two devices; see `make rdma`"))


@pytest.fixture(scope="session")
def devices() -> tuple[str, str]:
    return DEVICES[0], DEVICES[1]


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """A device's process answers later where its processor is emulated, and is not at fault for it."""
    with pytest.MonkeyPatch.context() as patched:
        for module, name in (
            (nic, "LOOK_SECONDS"), (nic, "START_SECONDS"),
            (transport, "LOOK_SECONDS"), (transport, "ANSWER_SECONDS"), (transport, "OPEN_SECONDS"),
        ):  # fmt: skip
            patched.setattr(module, name, PATIENCE * getattr(module, name))
        yield
