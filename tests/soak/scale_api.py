"""The API server as the scale run needs it: plain calls in one event loop, watches, and what the server has counted of
calls."""

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

Document = dict[str, Any]
MERGE = "application/merge-patch+json"
STATUS = "application/strategic-merge-patch+json"
AT_ONCE = 24
# What the controller asks for and nothing else of these clusters does, as (verb, resource) of the server's metrics.
CONTROLLERS = {
    ("GET", "kvcachepools"), ("LIST", "kvcachepools"), ("PUT", "kvcachepools/status"), ("GET", "configmaps"),
    ("APPLY", "configmaps"), ("PATCH", "configmaps"), ("GET", "services"), ("APPLY", "services"),
    ("PATCH", "services"), ("LIST", "pods"), ("POST", "events"),
}  # fmt: skip


class Api:
    """Asks as the cluster's administrator; to be made and used in one event loop."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.url = cluster["server"]
        trust = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust, limit=0),
            headers={"Authorization": f"Bearer {user['token']}"},
            read_bufsize=4 * 2**20,
        )
        self._places = asyncio.Semaphore(AT_ONCE)
        self._first = asyncio.Semaphore(AT_ONCE)

    async def close(self) -> None:
        await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Document | None = None,
        kind: str = "application/json",
        *,
        first: bool = False,
    ) -> Any:
        """The answer; raises RuntimeError with what the server says for anything but success. first: not behind the
        many."""
        data = None if body is None else json.dumps(body)
        async with (
            self._first if first else self._places,
            self._session.request(method, f"{self.url}{path}", data=data, headers={"Content-Type": kind}) as answer,
        ):
            text = await answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.status} {text[:400]!r}")
            return json.loads(text) if answer.content_type == "application/json" else text.decode()

    async def watch(self, path: str, query: str = "") -> AsyncIterator[tuple[str, Document]]:
        """Changes, first of what is there; for ever: the server ends a watch whose reader is slow, and then what is
        there is told once more."""
        while True:
            try:
                async for event in self._watch_once(path, query):
                    yield event
            except (aiohttp.ClientError, TimeoutError, OSError, RuntimeError):
                await asyncio.sleep(1)

    async def _watch_once(self, path: str, query: str) -> AsyncIterator[tuple[str, Document]]:
        listed = await self.call("GET", f"{path}?{query}")
        for item in listed["items"]:
            yield "ADDED", item
        since = listed["metadata"]["resourceVersion"]
        timeout = aiohttp.ClientTimeout(total=None)
        url = f"{self.url}{path}?{query}&watch=true&timeoutSeconds=7200&resourceVersion={since}"
        async with self._session.get(url, timeout=timeout) as answer:
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                yield event["type"], event["object"]

    async def calls(self) -> "Counter[tuple[str, str]]":
        """Calls that the server has answered since its start, by verb and resource."""
        text = await self.call("GET", "/metrics")
        wanted = "\n".join(
            line for line in text.splitlines() if line.startswith(("# TYPE apiserver_request_total ", "apiserver_req"))
        )
        counts: Counter[tuple[str, str]] = Counter()
        for family in text_string_to_metric_families(wanted):
            for sample in family.samples:
                if sample.name == "apiserver_request_total":
                    labels = sample.labels
                    resource = "/".join(part for part in (labels["resource"], labels.get("subresource", "")) if part)
                    counts[labels["verb"], resource] += int(sample.value)
        return counts


def of_the_controller(before: "Counter[tuple[str, str]]", after: "Counter[tuple[str, str]]") -> dict[str, int]:
    """Its calls between two counts, by verb and resource, the most frequent first."""
    made = {f"{verb} {what}": after[verb, what] - before[verb, what] for verb, what in CONTROLLERS}
    return dict(sorted(((name, n) for name, n in made.items() if n), key=lambda entry: -entry[1]))


class Seen:
    """The last state of each object that a watch told of."""

    def __init__(self, api: Api, path: str, query: str = "") -> None:
        self._api, self._path, self._query = api, path, query
        self.objects: dict[tuple[str, str], Document] = {}
        self._changed = asyncio.Condition()

    async def follow(self) -> None:
        async for kind, item in self._api.watch(self._path, self._query):
            key = (item["metadata"]["namespace"], item["metadata"]["name"])
            if kind == "DELETED":
                self.objects.pop(key, None)
            else:
                self.objects[key] = item
            async with self._changed:
                self._changed.notify_all()

    async def until(self, what: str, holds: Callable[["Seen"], bool], seconds: float) -> None:
        """Raises TimeoutError with `what`."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: holds(self))
        except TimeoutError:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s") from None
