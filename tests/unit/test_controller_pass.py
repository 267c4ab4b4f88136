"""One pass over a pool, where the API server takes some of its writes and not others."""

import asyncio
import socket
import urllib.request
from collections.abc import Mapping
from typing import Any, cast

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import ReadTimeoutError

from kvpool_operator.controller import metrics
from kvpool_operator.controller.agents import Agents
from kvpool_operator.controller.board import Board
from kvpool_operator.controller.cluster import Cluster, Document, Key
from kvpool_operator.controller.main import liveness_url
from kvpool_operator.controller.reconcile import Reconciler
from kvpool_operator.desired.pods import Pod, living

KEY = ("a", "chat")
BARE = [f"bare-{number}" for number in range(5)]


class TakesNoEvents:
    """A cluster with a pool, its objects and bare pods; `refusal` is what comes of an Event."""

    def __init__(self, refusal: Exception | None) -> None:
        self.refusal = refusal
        self.events: list[str] = []
        self.statuses: list[Document] = []

    def read_pool(self, _: Key) -> Document:
        metadata = {"name": "chat", "namespace": "a", "uid": "1", "generation": 1}
        spec = {"transport": {"tls": {"mode": "Disabled"}}}
        return {"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": metadata, "spec": spec}

    def read(self, wanted: Document) -> Document:
        return wanted

    def pods(self, _: Key) -> list[Pod]:
        return living([{"metadata": {"name": name, "uid": f"{name}-uid"}} for name in BARE])

    def create_event(self, event: Document) -> bool:
        self.events.append(event["involvedObject"]["name"])
        if self.refusal:
            raise self.refusal
        return True

    def write_status(self, _: Document, status: Document) -> None:
        self.statuses.append(status)


def passes(cluster: TakesNoEvents, *refusals: Exception | None) -> None:
    """One pass for each of `refusals`."""

    async def run() -> None:
        agents = Agents()
        reconciler = Reconciler(cast(Cluster, cluster), agents)
        for refusal in refusals:
            cluster.refusal = refusal
            assert await reconciler.once(KEY)

    asyncio.run(run())


def test_an_api_server_that_does_not_answer_to_events_gets_the_status_and_the_events_later() -> None:
    silent = ReadTimeoutError(cast(Any, None), "/events", "timed out")
    cluster = TakesNoEvents(silent)
    passes(cluster, silent)
    assert (cluster.events, len(cluster.statuses)) == (["bare-0", "chat"], 1)  # one of the pods, one of the pool
    cluster.events.clear()
    passes(cluster, silent, None, None)
    assert [name for name in cluster.events if name != "chat"] == ["bare-0", *BARE]
    assert len(cluster.statuses) == 4


def test_events_that_are_refused_are_not_tried_for_ever() -> None:
    cluster = TakesNoEvents(None)
    passes(cluster, ApiException(status=403, reason="Forbidden"), None)
    assert [name for name in cluster.events if name != "chat"] == BARE
    assert len(cluster.statuses) == 2


class Moves(TakesNoEvents):
    """Several pools; `names` are the pods of each, `None` where a pool is gone."""

    names: Mapping[Key, list[str] | None]

    def read_pool(self, key: Key) -> Document:
        return cast(Document, None) if self.names[key] is None else super().read_pool(key)

    def pods(self, key: Key) -> list[Pod]:
        return living([{"metadata": {"name": name, "uid": name}} for name in self.names[key] or []])


class Forgets(Agents):
    def __init__(self) -> None:
        super().__init__()
        self.forgotten: list[str] = []

    def forget(self, uids: set[str]) -> None:
        super().forget(uids)
        self.forgotten += sorted(uids)


def test_of_pods_that_are_gone_nothing_is_kept_and_all_of_one_that_another_pool_has_by_now() -> None:
    async def run() -> list[list[str]]:
        cluster, agents, found = Moves(None), Forgets(), []
        reconciler = Reconciler(cast(Cluster, cluster), agents)
        for new, old in (["x"], ["a", "b", "mv"]), (["x", "mv"], ["a", "mv"]), (["x", "mv"], ["a"]), ([], None):
            cluster.names = {("a", "new"): new, KEY: old}
            for key in cluster.names:
                await reconciler.once(key)
            found.append(agents.forgotten)
            agents.forgotten = []
        return found

    assert asyncio.run(run()) == [[], ["b"], [], ["mv", "x", "a"]]


def test_a_pass_leaves_what_it_saw_for_the_page_and_nothing_of_a_pool_that_is_gone() -> None:
    async def run() -> Board:
        cluster, board = Moves(None), Board()
        reconciler = Reconciler(cast(Cluster, cluster), Agents(), board=board)
        for names in (["x"], None):
            cluster.names = {("a", "new"): ["n"], KEY: names}
            for key in cluster.names:
                await reconciler.once(key)
            if names:
                assert [m.name for m in board.pools[KEY].members] == names
                assert board.pools[KEY].status == cluster.statuses[-1]
        return board

    assert list(asyncio.run(run()).pools) == [("a", "new")]


def test_the_controller_answers_at_addresses_of_both_families() -> None:
    assert liveness_url("10.0.0.1") == "http://10.0.0.1:8080/healthz"
    assert liveness_url("fd00::1") == "http://[fd00::1]:8080/healthz"
    assert liveness_url("") == "http://0.0.0.0:8080/healthz"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    metrics.serve(port)
    for host in ("127.0.0.1", *(["[::1]"] if socket.has_dualstack_ipv6() else [])):
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
            assert b"kvpool_controller_passes" in answer.read()
