"""The chart in a cluster of two nodes, installed once as README says, and removed with all that is kvpool's when these
tests are done: a cluster that its owner has named is left as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster import images, provider, readme
from cluster.chart import CONTROLLER, WEBHOOK, Chart
from cluster.engines import SELECTOR, Engines
from cluster.kube import Kube
from cluster.standins import StandIns

LOSES_A_NODE = "lost_node"
HOT_BLOCKS = 8


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests after which a node is gone come last of those that need nodes."""
    mine = [n for n, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    ordered = sorted((items[n] for n in mine), key=lambda item: LOSES_A_NODE in getattr(item, "fixturenames", ()))
    for n, item in zip(mine, ordered, strict=True):
        items[n] = item


@pytest.fixture(scope="package")
def kube(provided: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    with images.in_the_making(tmp_path_factory.mktemp("images")) as load, provider.provide("node") as cluster:
        load(cluster)
        kube = Kube(cluster, "default")
        yield kube
        if request.session.testsfailed:
            print(kube.report(SELECTOR))


@pytest.fixture(scope="package")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return readme.checkout(tmp_path_factory.mktemp("reader"))


@pytest.fixture(scope="package")
def chart(kube: Kube, reader: Path) -> Iterator[Chart]:
    chart = Chart(kube.provided)
    try:
        chart.install(reader)
        yield chart
    finally:
        print(chart.kubectl("logs", f"deployment/{CONTROLLER}", "--tail=100", check=False).stdout[-8000:])
        print(chart.kubectl("logs", f"deployment/{WEBHOOK}", "--tail=100", check=False).stdout[-4000:])
        chart.clear()


@pytest.fixture(scope="module")
def engines(kube: Kube, chart: Chart) -> Iterator[Engines]:
    """Real engines, which load the machine while they are there."""
    engines = Engines(kube)
    engines.deploy()
    yield engines
    engines.remove()


@contextmanager
def namespace(chart: Chart, request: pytest.FixtureRequest) -> Iterator[StandIns]:
    failed = request.session.testsfailed
    home = StandIns(chart.provided, f"standins-{abs(hash(request.node.nodeid)) % 10**8}")
    yield home
    if request.session.testsfailed > failed:
        print(home.report("app=chat"))
    home.remove()


@pytest.fixture
def standins(chart: Chart, request: pytest.FixtureRequest) -> Iterator[StandIns]:
    """A namespace for a pool of stand-in engines."""
    with namespace(chart, request) as home:
        yield home


@pytest.fixture(scope="module")
def lasting(chart: Chart, request: pytest.FixtureRequest) -> Iterator[StandIns]:
    """A namespace with a pool that goes through a file's tests in their order: each begins with two ready members or
    more, as the one before has left them."""
    with namespace(chart, request) as home:
        home.create(2)
        yield home


@pytest.fixture(scope="module")
def hot(lasting: StandIns) -> list[int]:
    """The first prompt that its members were asked."""
    return lasting.heat("hot", HOT_BLOCKS)
