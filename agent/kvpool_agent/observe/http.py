"""The worker's HTTP port: /status as JSON, /metrics for Prometheus. Answers come from memory and never wait."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from kvpool_agent.observe.metrics import registry
from kvpool_contract.status import AgentStatus, encode_status


def application(status: Callable[[], AgentStatus]) -> web.Application:
    metrics = registry(status)

    async def get_status(_: web.Request) -> web.Response:
        return web.Response(body=encode_status(status()), content_type="application/json")

    async def get_metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/status", get_status)
    app.router.add_get("/metrics", get_metrics)
    return app
