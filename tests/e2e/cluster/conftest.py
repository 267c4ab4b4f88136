"""One cluster for the whole session; without a cluster the suite is skipped with one line. The cluster has nodes only
where a test of the session needs them.

With CI=true that skip is a failure: a suite that never runs proves nothing.
"""

import os
from collections.abc import Iterator

import pytest

from cluster import images, provider
from cluster.controllers import Controller
from cluster.engines import SELECTOR
from cluster.kube import Kube
from cluster.pools import NAMESPACE, Pools


@pytest.fixture(scope="session")
def kube(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    if reason := provider.lacking():
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    nodes = any("chart" in item.fixturenames for item in request.session.items if isinstance(item, pytest.Function))
    with provider.provide("node" if nodes else "control") as provided:
        if provided.folder and nodes:
            for archive in images.archives(tmp_path_factory.mktemp("images")):
                provider.load_image(provided, archive)
        kube = Kube(provided, "default")
        yield kube
        if request.session.testsfailed:
            print(kube.report(SELECTOR))


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
