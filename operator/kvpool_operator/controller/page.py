"""The read-only page of the pools, served to whoever may forward a port of the controller's pod, and to nobody else.

It names members, formats and reasons of all pools, as the agents' statuses do: so it is served, as those are, at the
loopback address alone, and reached through `kubectl port-forward`, for which Kubernetes asks for a right. A page that
some site in the same browser opens may not read it either: it answers to no name but that of this machine.
"""

import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from kvpool_operator.controller.board import Board
from kvpool_operator.view.pool import pool_list, pool_page

log = logging.getLogger("kvpool.controller")

ADDRESS = "127.0.0.1"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(board: Board, clock: Callable[[], float] = time.time) -> web.Application:
    """clock: seconds since the epoch."""

    @web.middleware
    async def at_this_machine(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not _is_loopback(request.url.host or ""):
            raise web.HTTPForbidden(text="the page answers at localhost; forward its port\n")
        return await handler(request)

    async def all_pools(_: web.Request) -> web.Response:
        return _page(pool_list(board.pools, clock()))

    async def one_pool(request: web.Request) -> web.Response:
        key = request.match_info["k8s_namespace"], request.match_info["pool"]
        if key not in board.pools:
            raise web.HTTPNotFound(text="no such pool was seen\n")
        return _page(pool_page(*key, board.pools[key], clock()))

    app = web.Application(middlewares=[at_this_machine])
    app.router.add_get("/", all_pools)
    app.router.add_get("/{k8s_namespace}/{pool}", one_pool)
    return app


async def serve(board: Board, port: int) -> web.AppRunner:
    """Serves the page until the runner is cleaned up. A port that is taken costs the page alone."""
    runner = web.AppRunner(application(board), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, ADDRESS, port).start()
    except OSError as error:
        log.warning("there is no page: %s", error)
    return runner


def _page(text: str) -> web.Response:
    return web.Response(text=text, content_type="text/html", headers=HEADERS)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
