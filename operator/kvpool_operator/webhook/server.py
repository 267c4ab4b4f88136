"""The webhook's two ports: reviews and signing over HTTPS, and health and metrics over HTTP for kubelet and Prometheus.

Whatever goes wrong in here lets the pod be created unchanged: with `failurePolicy: Ignore` that is what happens, too,
when nobody answers at all. A pod that requires the pool gets no answer then, and the `failurePolicy: Fail` of its kind
refuses it.
"""

import asyncio
import contextlib
import json
import logging
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from aiohttp import web

from kvpool_contract.identity import SIGN_PATH
from kvpool_operator.inject import Settings
from kvpool_operator.webhook.api import ApiServer, Client
from kvpool_operator.webhook.authority import LiveAuthority
from kvpool_operator.webhook.certificate import LiveCertificate
from kvpool_operator.webhook.metrics import Metrics
from kvpool_operator.webhook.pools import Pools
from kvpool_operator.webhook.review import Answer, NotAReviewError, allow, decide, read, requires_pool
from kvpool_operator.webhook.signer import LEAF_LIFE, OUTCOMES, Signer

log = logging.getLogger("kvpool.webhook")

PATH = "/inject"
PRIVILEGED_PATH = "/inject/privileged"  # the API server chooses by the namespace's labels, which no review tells
LARGEST_REVIEW = 8 * 2**20  # the API server takes 3 MiB from clients, and may send an object and its former self
REVIEW_SECONDS = 5.0  # below the webhook configuration's own timeout
REFRESH_SECONDS = 1.0


@dataclass(frozen=True)
class Options:
    """`certificates`: the folder with tls.crt and tls.key. `peers`: the folder with the authority that signs for
    members, None where nobody signs; `leaf_life`: of what it signs. `drain_seconds`: how long reviews are still taken
    after the signal to end, until all API servers have seen it. Ports of 0 are chosen by the system."""

    certificates: Path
    api: ApiServer
    settings: Settings
    port: int = 9443
    status_port: int = 8080
    drain_seconds: float = 5.0
    peers: Path | None = None
    leaf_life: timedelta = LEAF_LIFE


class Webhook:
    """The handlers. `ending`: not ready any more, still serving."""

    def __init__(self, options: Options, certificate: LiveCertificate, pools: Pools) -> None:
        self._settings = options.settings
        self._certificate, self._pools = certificate, pools
        self.metrics = Metrics(OUTCOMES)
        self.ending = False
        self.metrics.watch("pools", "Pools that are known.", lambda: len(pools))
        self.metrics.watch("api_faults", "Questions to the API server that failed.", lambda: pools.faults)
        self.metrics.watch(
            "pools_silence_seconds",
            "Seconds since the API server last told of pools.",
            lambda: time.monotonic() - pools.heard,
        )
        self.metrics.watch("certificates_loaded", "Certificates taken since the start.", lambda: certificate.loaded)
        self.metrics.watch("certificates_refused", "Certificates that were not usable.", lambda: certificate.refused)
        self.metrics.watch(
            "certificate_expires_seconds",
            "When the certificate in use expires, seconds since 1970.",
            lambda: certificate.expires.timestamp() if certificate.expires else 0.0,
        )

    async def review(self, request: web.Request) -> web.Response:
        """Answers a review; a body that is none is answered with 400."""
        settings = replace(self._known_settings(), privileged=request.path == PRIVILEGED_PATH)
        started = time.monotonic()
        try:
            document = json.loads(await request.read())
            asked = read(document)
        except (ValueError, RecursionError) as error:
            self.metrics.reviews.labels("malformed").inc()
            sentence = str(error) if isinstance(error, NotAReviewError) else "the body is no JSON"
            return web.Response(status=400, text=f"{sentence}\n")
        answer = Answer(allow(asked.uid), "unchanged")
        if asked.pool:
            try:
                async with asyncio.timeout(REVIEW_SECONDS):
                    pool = await self._pools.find(asked.k8s_namespace, asked.pool)
                answer = decide(asked, pool, settings)
            except Exception:
                log.exception("a pod of namespace %s can't be reviewed", asked.k8s_namespace)
                answer = Answer(allow(asked.uid), "failed")
        self._count(answer, time.monotonic() - started)
        if answer.reason:
            name = asked.pod.get("metadata", {}).get("name") or asked.pod.get("metadata", {}).get("generateName")
            log.info("%s pod %s/%s: %s", answer.outcome, asked.k8s_namespace, name, answer.reason)
        if answer.outcome == "failed" and requires_pool(asked.pod):
            return web.Response(status=500, text="a fault in kvpool's webhook; its log says which\n")
        return web.json_response(answer.review)

    def _known_settings(self) -> Settings:
        settings = self._settings
        return settings if settings.kubernetes else replace(settings, kubernetes=self._pools.kubernetes)

    def _count(self, answer: Answer, seconds: float) -> None:
        self.metrics.reviews.labels(answer.outcome).inc()
        self.metrics.seconds.observe(seconds)
        if answer.reason:
            self.metrics.skipped.labels(answer.reason).inc()

    def count_signature(self, outcome: str) -> None:
        self.metrics.signatures.labels(outcome).inc()

    async def healthz(self, _request: web.Request) -> web.Response:
        """The process answers."""
        return web.Response(text="ok\n")

    async def readyz(self, _request: web.Request) -> web.Response:
        """A review would be answered well: the certificate is valid and the pools were read once."""
        wanting = [
            word
            for word, there in (
                ("ending", not self.ending),
                ("no valid certificate", self._certificate.valid(datetime.now(UTC))),
                ("pools not read", self._pools.synced),
            )
            if not there
        ]
        return web.Response(status=503 if wanting else 200, text=f"{', '.join(wanting) or 'ok'}\n")

    async def exposition(self, _request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self.metrics.exposition(), headers=headers)


async def serve(options: Options, stop: asyncio.Event) -> None:
    """Serves until `stop`; raises ApiError where the API server's authority can't be read, OSError where a port is
    taken."""
    certificate = LiveCertificate(options.certificates)
    client = Client(options.api)
    pools = Pools(client)
    webhook = Webhook(options, certificate, pools)
    status = web.Application()
    status.add_routes(
        [
            web.get("/healthz", webhook.healthz),
            web.get("/readyz", webhook.readyz),
            web.get("/metrics", webhook.exposition),
        ]
    )
    reviews = web.Application(client_max_size=LARGEST_REVIEW)
    reviews.add_routes(
        [
            web.post(PATH, webhook.review),
            web.post(PRIVILEGED_PATH, webhook.review),
            web.get("/healthz", webhook.healthz),
        ]
    )
    runners = [web.AppRunner(app, access_log=None) for app in (status, reviews)]
    authority = None
    if options.peers is not None:
        authority = LiveAuthority(options.peers)
        _watch_authority(webhook.metrics, authority)
        signer = Signer(client, authority, webhook.count_signature, options.leaf_life)
        reviews.add_routes([web.post(SIGN_PATH, signer.sign)])
    tasks: list[asyncio.Task[None]] = []
    try:
        for runner in runners:
            await runner.setup()
        await web.TCPSite(runners[0], port=options.status_port).start()
        tasks.append(asyncio.create_task(pools.follow()))
        tasks.append(asyncio.create_task(_refresh(certificate, authority)))
        while not certificate.loaded and not stop.is_set():  # a handshake without a certificate only fails
            await asyncio.sleep(REFRESH_SECONDS / 10)
        await web.TCPSite(runners[1], port=options.port, ssl_context=certificate.context).start()
        log.info("ports: %s", [runner.addresses[0][1] for runner in runners if runner.addresses])
        await stop.wait()
        webhook.ending = True
        await asyncio.sleep(options.drain_seconds)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for runner in runners:
            with contextlib.suppress(RuntimeError):
                await runner.cleanup()
        await client.close()


def _watch_authority(metrics: Metrics, authority: LiveAuthority) -> None:
    metrics.watch("authorities_loaded", "Authorities for members taken since the start.", lambda: authority.loaded)
    metrics.watch("authorities_refused", "Authorities that were not usable.", lambda: authority.refused)
    metrics.watch(
        "authority_expires_seconds",
        "When the authority that signs for members expires, seconds since 1970.",
        lambda: authority.expires,
    )


async def _refresh(certificate: LiveCertificate, authority: LiveAuthority | None) -> None:
    while True:
        certificate.refresh()
        if authority is not None:
            authority.refresh()
        await asyncio.sleep(REFRESH_SECONDS)
