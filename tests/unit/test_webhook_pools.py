"""What the webhook knows of pools: the API server asked, watched, silent, gone, and under another authority."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from kvpool_operator.certificates.plan import Plan, Settings, plan
from kvpool_operator.desired.pool import KVCachePool
from kvpool_operator.webhook import api
from kvpool_operator.webhook.api import ApiError, ApiServer, Client
from kvpool_operator.webhook.pools import Pools, usable
from kvpool_operator.webhook.review import Unusable

POOL = {
    "apiVersion": "kvpool.io/v1alpha1",
    "kind": "KVCachePool",
    "metadata": {"name": "chat", "namespace": "team-a", "resourceVersion": "5"},
    "spec": {"agent": {"image": "example.test/agent:1"}},
}


class ScriptedClient:
    """The API server's answers, one after another; after the last it is silent."""

    def __init__(self, lists: list[Any], watches: list[list[Any]], single: Any = None) -> None:
        self.lists, self.watches, self.single = lists, watches, single
        self.since: list[str] = []
        self.asked = 0
        self.silent = asyncio.Event()

    async def version(self) -> tuple[int, int]:
        return 1, 34

    async def pools(self) -> tuple[list[dict[str, Any]], str]:
        found = self.lists.pop(0)
        if isinstance(found, Exception):
            raise found
        return found, "10"

    async def pool(self, k8s_namespace: str, name: str) -> Any:
        self.asked += 1
        if isinstance(self.single, Exception):
            raise self.single
        return self.single

    async def watch(self, since: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        self.since.append(since)
        if not self.watches:
            self.silent.set()
            await asyncio.Event().wait()
        for event in self.watches.pop(0):
            if isinstance(event, Exception):
                raise event
            yield event


def named(name: str, version: str) -> dict[str, Any]:
    return {**POOL, "metadata": {"name": name, "namespace": "team-a", "resourceVersion": version}}


def followed(client: ScriptedClient, check: Callable[[Pools], Awaitable[None]]) -> None:
    async def run() -> None:
        pools = Pools(cast(Client, client))
        task = asyncio.create_task(pools.follow())
        await asyncio.wait_for(client.silent.wait(), 20)
        await check(pools)
        task.cancel()

    asyncio.run(run())


def test_pools_follow_every_change_and_every_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvpool_operator.webhook.pools.FIRST_PAUSE", 0.01)
    client = ScriptedClient(
        [ApiError("away"), [named("a", "1"), named("b", "2")], RuntimeError("nonsense"), [named("c", "20")]],
        [
            [
                ("ADDED", named("d", "11")),
                ("DELETED", named("a", "12")),
                ("BOOKMARK", {"metadata": {"resourceVersion": "15"}}),
            ],
            [("MODIFIED", {**named("b", "16"), "spec": {"engine": {"port": 0}}}), ApiError("410")],
        ],
    )

    async def check(pools: Pools) -> None:
        assert client.since == ["10", "15", "10"]
        assert (pools.synced, pools.kubernetes, len(pools), pools.faults) == (True, (1, 34), 1, 3)
        assert isinstance(await pools.find("team-a", "c"), KVCachePool)
        assert client.asked == 0
        assert await pools.find("team-a", "a") == Unusable("pool_unknown")
        client.single = ApiError("away")
        assert await pools.find("team-a", "a") == Unusable("pool_unread")
        client.single = {**POOL, "spec": {"engine": {"port": 0}}}
        assert (await pools.find("team-a", "a")) == usable(client.single) != Unusable("pool_unread")
        assert client.asked == 3

    followed(client, check)


def test_when_pools_were_last_told_of_is_known() -> None:
    async def run() -> None:
        client = ScriptedClient([[], ApiError("away")], [[("BOOKMARK", {"metadata": {"resourceVersion": "15"}})]])
        pools = Pools(cast(Client, client))
        heard = []
        for told in (pools._list(), pools._watch("10"), pools._list()):
            pools.heard = 0.0
            await asyncio.gather(told, return_exceptions=True)
            heard.append(0.0 < pools.heard <= time.monotonic())
        assert heard == [True, True, False]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("watch", "lists", "pauses"),
    [
        ([ApiError("403")], 9, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]),  # it may not be watched
        ([], 1, [0.5] * 8),  # each watch ends as soon as it has begun
    ],
)
def test_an_api_server_that_keeps_no_watch_is_not_asked_without_end(
    monkeypatch: pytest.MonkeyPatch, watch: list[Any], lists: int, pauses: list[float]
) -> None:
    client = ScriptedClient([[]] * 9, [watch] * 8)
    slept: list[float] = []
    yielding = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await yielding(0)

    async def check(_: Pools) -> None:
        assert (slept, 9 - len(client.lists)) == (pauses, lists)

    monkeypatch.setattr("asyncio.sleep", sleep)
    monkeypatch.setattr("random.uniform", lambda _low, high: high)
    followed(client, check)


def test_a_flood_of_unknown_pools_is_not_passed_on() -> None:
    async def run() -> None:
        release = asyncio.Event()
        client = ScriptedClient([], [])

        async def slow(k8s_namespace: str, name: str) -> None:
            client.asked += 1
            await release.wait()

        client.pool = slow  # type: ignore[method-assign]
        pools = Pools(cast(Client, client))
        questions = [asyncio.create_task(pools.find("team-a", f"x{n}")) for n in range(100)]
        await asyncio.sleep(0)
        release.set()
        found = [question.reason for question in await asyncio.gather(*questions) if isinstance(question, Unusable)]
        assert (client.asked, found.count("pool_unknown"), found.count("pool_unread")) == (16, 16, 84)

    asyncio.run(run())


def test_one_unknown_pool_is_asked_for_once_at_a_time() -> None:
    async def run() -> None:
        client = ScriptedClient([], [], single=POOL)
        pools = Pools(cast(Client, client))
        found = await asyncio.gather(*(pools.find("team-a", "chat") for _ in range(100)))
        assert (client.asked, found) == (1, [usable(POOL)] * 100)
        first, second = (asyncio.create_task(pools.find("team-a", "chat")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()  # its review has waited long enough; the other one has not
        assert (await second, client.asked) == (usable(POOL), 2)

    asyncio.run(run())


def test_a_new_authority_of_the_api_server_is_trusted_once_its_file_says_so(tmp_path: Path) -> None:
    """It is replaced under a client that runs; before the file says so, nobody is trusted."""
    before, after = (plan(datetime.now(UTC), {}, {}, Settings("n", "s", "w", extra_names=("127.0.0.1",))) for _ in "ab")
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("x")
    authority.write_bytes(before.bundle)

    async def run() -> None:
        runner = web.AppRunner(web.Application())
        runner.app.router.add_get("/version", answered)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=shows(after, tmp_path)).start()
        client = Client(ApiServer(f"https://127.0.0.1:{runner.addresses[0][1]}", token, authority))
        for text in (before.bundle, b"half a fi"):
            authority.write_bytes(text)
            for _ in range(2):
                with pytest.raises(ApiError, match="CERTIFICATE_VERIFY_FAILED"):
                    await client.version()
        authority.write_bytes(after.bundle)
        with pytest.raises(ApiError, match="CERTIFICATE_VERIFY_FAILED"):
            await client.version()
        assert await client.version() == (1, 34)
        await client.close()
        await runner.cleanup()

    asyncio.run(run())


async def answered(_: web.Request) -> web.Response:
    return web.json_response({"major": "1", "minor": "34"})


def shows(pair: Plan, folder: Path) -> ssl.SSLContext:
    (folder / "tls.crt").write_bytes(pair.leaf["tls.crt"])
    (folder / "tls.key").write_bytes(pair.leaf["tls.key"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


def test_the_api_server_of_the_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ApiError, match="KUBERNETES_SERVICE_HOST is not set"):
        ApiServer.of_the_cluster()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert ApiServer.of_the_cluster() == ApiServer("https://[fd00::1]:6443")
    assert ApiServer.of_the_cluster().token_file == api.ACCOUNT / "token"
    (tmp_path / "ca.crt").write_text("nonsense")

    async def run() -> None:
        with pytest.raises(ApiError, match=r"ca\.crt holds no authority"):
            Client(ApiServer("https://x", tmp_path / "token", tmp_path / "ca.crt"))

    asyncio.run(run())
