"""One pass over a pool, where the API server takes some of its writes and not others."""

import asyncio
import socket
import urllib.request
from typing import Any, cast

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import ReadTimeoutError

from kvpool_operator.controller import metrics
from kvpool_operator.controller.agents import Agents
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
