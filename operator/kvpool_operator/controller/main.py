"""The composition root: kopf watches, loops pass.

kopf brings watching, login and the liveness endpoint. Its change handlers, timers and daemons are not used: they keep
their progress in annotations and hold objects back by finalizers, and a pool must be deletable while nobody looks.
"""

import argparse
import asyncio
import logging
import os
import sys
import time
from typing import Any

import kopf
from aiohttp import web
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from kvpool_contract import core_dumps
from kvpool_contract.names import API_GROUP, POOL_LABEL
from kvpool_operator.certificates.plan import Settings
from kvpool_operator.controller import certificates as webhook_certificates
from kvpool_operator.controller import identity, metrics, page
from kvpool_operator.controller.agents import Agents
from kvpool_operator.controller.board import Board
from kvpool_operator.controller.cluster import NOT_FOUND, PLURAL, VERSION, Cluster, Key
from kvpool_operator.controller.known import Known
from kvpool_operator.controller.loops import Loops
from kvpool_operator.controller.reconcile import Reconciler

log = logging.getLogger("kvpool.controller")

REQUEST_SECONDS = 10.0
RETRY_SECONDS = 5.0
GOOD_FOR = 6  # times the seconds between passes: how old what was read of the API server may be


def handlers(
    cluster: Known,
    k8s_namespaces: list[str],
    every: float,
    webhook: Settings | None = None,
    members: identity.IdentitySettings | None = None,
    agent_image: str = "",
    page_port: int = 0,
) -> kopf.OperatorRegistry:
    """What kopf calls: start and end, and a wake-up for each change of a pool or of a pool's pod. page_port: 0 for no
    page."""
    registry = kopf.OperatorRegistry()
    running: list[Loops] = []
    keeping: list[asyncio.Task[None]] = []
    pages: list[web.AppRunner] = []

    @kopf.on.login(registry=registry)
    def login(**given: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**given) or kopf.login_with_kubeconfig(**given)

    @kopf.on.startup(registry=registry)
    async def start(**_: Any) -> None:
        known = None
        if members is not None:
            known = identity.Identity(
                cluster.api_client, members, lambda: cluster.pool_keys(k8s_namespaces), lambda: loops.wake_all()
            )
        agents = Agents(known)
        board = Board()
        reconciler = Reconciler(cluster, agents, agent_image, known, board)
        if page_port:
            pages.append(await page.serve(board, page_port))

        async def keys() -> list[Key]:
            return await asyncio.to_thread(cluster.pool_keys, k8s_namespaces)

        loops = Loops(reconciler.once, keys, every)
        loops.start()
        running.append(loops)
        if webhook is not None:
            keeping.append(asyncio.create_task(webhook_certificates.keep(cluster.api_client, webhook)))
        if known is not None:
            keeping.append(asyncio.create_task(known.keep()))

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        for runner in pages:
            await runner.cleanup()
        for task in keeping:
            task.cancel()
        for loops in running:
            await loops.stop()

    @kopf.on.event(API_GROUP, VERSION, PLURAL, registry=registry)
    async def pool_changed(
        type: str | None,
        body: kopf.Body, namespace: str | None, name: str | None, **_: Any,
    ) -> None:  # fmt: skip
        if namespace and name and cluster.pool_seen((namespace, name), {**body}, gone=type == "DELETED"):
            _wake(namespace, name)

    @kopf.on.event("v1", "pods", registry=registry)
    async def pod_changed(namespace: str | None, labels: kopf.Labels, **_: Any) -> None:
        if namespace and labels.get(POOL_LABEL):
            cluster.pods_seen((namespace, labels[POOL_LABEL]))
        _wake(namespace, labels.get(POOL_LABEL))

    def _wake(namespace: str | None, pool: str | None) -> None:
        if namespace and pool:
            for loops in running:
                loops.wake((namespace, pool))

    return registry


def settings() -> kopf.OperatorSettings:
    """Only pods with the pool label are watched, nothing is scanned, no Event and no annotation is kopf's."""
    chosen = kopf.OperatorSettings()
    chosen.watching.label_selectors["v1", "pods"] = POOL_LABEL
    chosen.scanning.disabled = True
    chosen.posting.enabled = False
    chosen.networking.request_timeout = REQUEST_SECONDS
    return chosen


def liveness_url(address: str) -> str:
    """Where the kubelet asks: at the pod's own address, of either family; kopf listens on one family alone. address:
    empty means all IPv4 ones."""
    return f"http://{f'[{address}]' if ':' in address else address or '0.0.0.0'}:8080/healthz"


def wait_for_definition(cluster: Cluster, k8s_namespaces: list[str]) -> None:
    """Until the API server answers and knows pools: kopf looks for them once, at its start."""
    while True:
        try:
            cluster.pool_keys(k8s_namespaces)
        except ApiException as error:
            unknown = "the API server does not know KVCachePool; apply the definition in crds/"
            log.warning("%s", unknown if error.status == NOT_FOUND else f"pools can't be listed: {error.reason}")
        except HTTPError as error:
            log.warning("the API server does not answer: %s", error)
        else:
            return
        time.sleep(RETRY_SECONDS)


def main() -> None:
    core_dumps.forbid()
    parser = argparse.ArgumentParser(prog="kvpool-controller", description="Looks after pools.")
    parser.add_argument("--namespace", action="append", default=[], help="look here only; may be repeated")
    parser.add_argument("--poll-seconds", type=float, default=10.0, help="how often agents are asked (default 10)")
    parser.add_argument(
        "--liveness",
        default=liveness_url(os.environ.get("POD_IP", "")),
        help="URL of the liveness endpoint (default %(default)s: at POD_IP where it is set)",
    )
    parser.add_argument("--metrics-port", type=int, default=8081, help="port of /metrics; 0 for none")
    parser.add_argument(
        "--page-port", type=int, default=8082, help="port of the pools' page at 127.0.0.1 (default 8082); 0 for none"
    )
    parser.add_argument(
        "--update-agents",
        default="",
        metavar="IMAGE",
        help="pools with the update strategy InPlace are updated, those that name no image to this one",
    )
    webhook_certificates.add_arguments(parser)
    identity.add_arguments(parser)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in ("kopf.objects", "aiohttp.access"):  # a line for every change of a pod, and for every probe
        logging.getLogger(name).setLevel(logging.WARNING)
    if options.metrics_port:
        metrics.serve(options.metrics_port)
    cluster = Known(GOOD_FOR * options.poll_seconds)
    wait_for_definition(cluster, options.namespace)
    try:
        kopf.run(
            registry=handlers(
                cluster,
                options.namespace,
                options.poll_seconds,
                webhook_certificates.chosen(options),
                identity.chosen(options),
                options.update_agents,
                options.page_port,
            ),
            settings=settings(),
            standalone=True,
            identity="kvpool-controller",  # type: ignore[arg-type]  # else the user's name, and a pod's has none
            clusterwide=not options.namespace,
            namespaces=options.namespace,
            liveness_endpoint=options.liveness,
        )
    except Exception as error:  # noqa: BLE001 (whatever ends a watch for good, such as a definition taken away)
        log.error("ended: %s; once restarted it waits for what is missing", error)
        sys.exit(1)
