"""The webhook's server: what it does with reviews of any size and shape, with faults of its own, and with files of
certificates that come, change and don't fit."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import ClientSession, TCPConnector, web
from aiohttp.test_utils import TestClient, TestServer

from kvpool_operator.certificates.plan import Plan, plan
from kvpool_operator.certificates.plan import Settings as CertificateSettings
from kvpool_operator.desired.pool import KVCachePool
from kvpool_operator.inject import Settings
from kvpool_operator.webhook.api import ApiServer
from kvpool_operator.webhook.certificate import LiveCertificate
from kvpool_operator.webhook.pools import Pools, usable
from kvpool_operator.webhook.review import Unusable
from kvpool_operator.webhook.server import LARGEST_REVIEW, PATH, PRIVILEGED_PATH, Options, Webhook

POOL: dict[str, Any] = {
    "apiVersion": "kvpool.io/v1alpha1",
    "kind": "KVCachePool",
    "metadata": {"name": "chat", "namespace": "team-a", "resourceVersion": "5"},
    "spec": {"agent": {"image": "example.test/agent:1"}},
}
OPTIONS = Options(Path(), ApiServer("https://nowhere.invalid"), Settings())


class KnownPools:
    """Answers for one pool, or raises."""

    synced, kubernetes, faults, heard = True, (1, 34), 0, 0.0

    def __init__(self, error: Exception | None = None, **spec: Any) -> None:
        self.error = error
        self.pool = {**POOL, "spec": {**POOL["spec"], **spec}}

    def __len__(self) -> int:
        return 1

    async def find(self, k8s_namespace: str, name: str) -> KVCachePool | Unusable:
        if self.error:
            raise self.error
        return usable(self.pool)


def review(size: int = 0, labels: dict[str, str] | None = None, spec: Any = None) -> dict[str, Any]:
    pod = {
        "metadata": {
            "generateName": "x-",
            "labels": labels or {"kvpool.io/pool": "chat"},
            "annotations": {},
        },
        "spec": spec or {"containers": [{"name": "engine", "image": "vllm:1", "args": ["x" * size]}]},
    }
    request = {"uid": "u", "kind": {"kind": "Pod"}, "operation": "CREATE", "namespace": "team-a", "object": pod}
    return {"request": request}


@asynccontextmanager
async def served(pools: KnownPools) -> AsyncIterator[tuple[TestClient[Any, Any], Webhook]]:
    webhook = Webhook(OPTIONS, LiveCertificate(Path("/nonexistent")), cast(Pools, pools))
    app = web.Application(client_max_size=LARGEST_REVIEW)
    paths = [web.post(path, webhook.review) for path in (PATH, PRIVILEGED_PATH)]
    app.add_routes([*paths, web.get("/readyz", webhook.readyz)])
    async with TestClient(TestServer(app)) as test_client:
        yield test_client, webhook


def outcomes(webhook: Webhook) -> dict[str, int]:
    samples = [s for family in webhook.metrics.registry.collect() for s in family.samples]
    return {s.labels["outcome"]: int(s.value) for s in samples if s.name == "kvpool_webhook_reviews_total" and s.value}


def test_a_review_as_large_as_the_api_server_takes_is_answered() -> None:
    async def run() -> None:
        async with served(KnownPools()) as (asked, webhook):
            answer = await asked.post(PATH, json=review(size=3 * 2**20))
            response = (await answer.json())["response"]
            assert (answer.status, response["allowed"], "patch" in response) == (200, True, True)
            too_large = await asked.post(PATH, json=review(size=LARGEST_REVIEW))
            assert too_large.status == 413
            assert outcomes(webhook) == {"injected": 1}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("pools", "body"),
    [
        (KnownPools(RuntimeError("ours")), review()),
        (KnownPools(TimeoutError()), review()),
        (KnownPools(), review(spec={"containers": "nonsense"})),
        (KnownPools(), review(spec={"containers": [{"name": "engine", "command": 5}]})),
    ],
)
def test_a_fault_of_ours_lets_the_pod_be_created_unchanged(pools: KnownPools, body: dict[str, Any]) -> None:
    async def run() -> None:
        async with served(pools) as (asked, webhook):
            answer = await asked.post(PATH, json=body)
            assert (await answer.json())["response"] == {"uid": "u", "allowed": True}
            assert outcomes(webhook) == {"failed": 1}

    asyncio.run(run())


def test_a_fault_of_ours_is_no_answer_for_a_pod_that_requires_the_pool() -> None:
    body = review()
    body["request"]["object"]["metadata"]["annotations"]["kvpool.io/require"] = "true"

    async def run() -> None:
        async with served(KnownPools(RuntimeError("ours"))) as (asked, webhook):
            assert (await asked.post(PATH, json=body)).status == 500
            assert outcomes(webhook) == {"failed": 1}

    asyncio.run(run())


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"request":{}}', b"\xff", b"[" * 100_000])
def test_what_is_no_review_is_told_so(body: bytes) -> None:
    async def run() -> None:
        async with served(KnownPools()) as (asked, webhook):
            answer = await asked.post(PATH, data=body)
            assert (answer.status, (await answer.text()).startswith("the body is no")) == (400, True)
            assert outcomes(webhook) == {"malformed": 1}

    asyncio.run(run())


def test_what_a_privileged_namespace_allows_is_given_at_its_own_path_alone() -> None:
    async def run() -> None:
        rdma = {"memlock": "IPCLock", "allowUnencrypted": True}
        async with served(KnownPools(transport={"rdma": rdma})) as (asked, _):
            withheld = []
            for path in (PATH, PRIVILEGED_PATH, PATH):
                answer = await asked.post(path, json=review())
                response = (await answer.json())["response"]
                assert response["allowed"] and "patch" in response
                withheld.append("warnings" in response)
            assert withheld == [True, False, True]

    asyncio.run(run())


def test_a_pod_without_the_label_needs_no_pools() -> None:
    async def run() -> None:
        async with served(KnownPools(RuntimeError("never asked"))) as (asked, webhook):
            answer = await asked.post(PATH, json=review(labels={"app": "x"}))
            assert (await answer.json())["response"] == {"uid": "u", "allowed": True}
            assert outcomes(webhook) == {"unchanged": 1}
            assert (await asked.get("/readyz")).status == 503  # there is no certificate

    asyncio.run(run())


# ---- certificates

SETTINGS = CertificateSettings("n", "s", "w", extra_names=("127.0.0.1",))


def made() -> Plan:
    return plan(datetime.now(UTC), {}, {}, SETTINGS)


def put(folder: Path, pair: Plan, *, key_of: Plan | None = None) -> None:
    (folder / "tls.crt").write_bytes(pair.leaf["tls.crt"])
    (folder / "tls.key").write_bytes((key_of or pair).leaf["tls.key"])


def test_a_pair_is_taken_when_it_fits_and_the_one_before_it_stays_until_then(tmp_path: Path) -> None:
    live, first, second = LiveCertificate(tmp_path), made(), made()
    now = datetime.now(UTC)

    async def run() -> None:
        live.refresh()
        assert (live.loaded, live.refused, live.valid(now)) == (0, 0, False)
        put(tmp_path, first)
        live.refresh()
        live.refresh()
        assert (live.loaded, live.refused, live.valid(now)) == (1, 0, True)
        assert not live.valid(now + timedelta(days=91))
        app = web.Application()
        app.add_routes([web.get("/", answer)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=live.context)
        await site.start()
        url = f"https://127.0.0.1:{runner.addresses[0][1]}/"
        async with ClientSession(connector=trusting(first)) as old:
            assert await text(old, url) == "ok"
            put(tmp_path, second, key_of=first)  # half of the change
            live.refresh()
            (tmp_path / "tls.crt").write_bytes(b"nonsense")
            live.refresh()
            (tmp_path / "tls.crt").unlink()
            live.refresh()
            assert (live.loaded, live.refused) == (1, 2)
            async with ClientSession(connector=trusting(first)) as still:
                assert await text(still, url) == "ok"
            put(tmp_path, second)
            live.refresh()
            assert (live.loaded, live.refused) == (2, 2)
            async with ClientSession(connector=trusting(second)) as new:
                assert await text(new, url) == "ok"
            assert await text(old, url) == "ok"  # on its open connection
        async with ClientSession(connector=trusting(first)) as late:
            with pytest.raises(OSError, match="certificate verify failed"):
                await text(late, url)
        await runner.cleanup()

    asyncio.run(run())


async def answer(_request: web.Request) -> web.Response:
    return web.Response(text="ok")


def trusting(pair: Plan) -> TCPConnector:
    return TCPConnector(ssl=ssl.create_default_context(cadata=pair.bundle.decode()), keepalive_timeout=60)


async def text(session: ClientSession, url: str) -> str:
    async with session.get(url) as response:
        return await response.text()
