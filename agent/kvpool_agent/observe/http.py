"""The worker's HTTP port: /status as JSON, /metrics for Prometheus. Answers come from memory and never wait.

A status names addresses, members and formats: it is told at a loopback address alone, which a port-forward reaches, and
to the controller at the peer port.
"""

import ipaddress
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from kvpool_agent.observe.metrics import registry
from kvpool_contract.status import AgentStatus, encode_status


def at_loopback(request: web.Request) -> bool:
    """Whether it has come in at a loopback address."""
    name = request.transport.get_extra_info("sockname") if request.transport else None
    if not name:
        return False
    address = ipaddress.ip_address(str(name[0]).partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def application(status: Callable[[], AgentStatus]) -> web.Application:
    metrics = registry(status)

    async def get_status(request: web.Request) -> web.Response:
        if not at_loopback(request):
            raise web.HTTPForbidden(text="the status is told at the pod's loopback address; use kvpool status\n")
        return web.Response(body=encode_status(status()), content_type="application/json")

    async def get_metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/status", get_status)
    app.router.add_get("/metrics", get_metrics)
    return app
