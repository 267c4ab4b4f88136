"""Two RDMA devices that can reach each other.

KVPOOL_RDMA_DEVICES names them, such as mlx5_0,mlx5_1; machine.py gives two made of software.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from rdma.member import be_patient

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
    with pytest.MonkeyPatch.context() as patched:
        be_patient(patched.setattr)
        yield
