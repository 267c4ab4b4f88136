"""A control plane without nodes for the session. What is installed has a cluster of its own, in `installed`, so that
the two folders may run side by side, as hack/suites.py does.

Without a cluster the suite is skipped with one line. With CI=true that skip is a failure: a suite that never runs
proves nothing.
"""

import os
from collections.abc import Iterator

import pytest

from cluster import provider
from cluster.controllers import Controller
from cluster.kube import Kube
from cluster.pools import NAMESPACE, Pools


@pytest.fixture(scope="session")
def provided() -> None:
    """That a cluster can be had."""
    if reason := provider.lacking():
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def kube(provided: None) -> Iterator[Kube]:
    with provider.provide("control") as cluster:
        yield Kube(cluster, "default")


@pytest.fixture(scope="session")
def controller(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """The controller as a process, for all tests that need it. One that a test has ended is started again."""
    home = Pools(kube.provided, NAMESPACE)
    home.prepare()
    made = Controller(home, tmp_path_factory.mktemp("controller"))
    yield made
    if made.running:
        made.end()
    home.remove()


@pytest.fixture
def pools(kube: Kube, controller: Controller, request: pytest.FixtureRequest) -> Iterator[Pools]:
    """A namespace without pools, and the controller at work."""
    home = Pools(kube.provided, NAMESPACE)
    if not controller.running:
        controller.start()
    failed = request.session.testsfailed
    yield home
    if request.session.testsfailed > failed:
        print(controller.log_file.read_text()[-8000:])
    home.clear()
