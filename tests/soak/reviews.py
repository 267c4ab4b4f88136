"""How long the webhook's reviews take when fifty come at a time."""

import asyncio
import json
import math
import ssl
import statistics
import time
from pathlib import Path
from typing import Any

import aiohttp
from cluster.kube import Kube
from cluster.webhook import Webhook, running
from pod_templates import engine, template

AT_ONCE, SECONDS, WARM_UP_SECONDS = 50, 20.0, 2.0
NAMESPACE, POOL = "scale-0", "pool-0"


def measure_reviews(kube: Kube, folder: Path) -> list[tuple[str, str]]:
    """Rows of the table. The pools of the run must still be there: one of them is asked for."""
    with running(kube, folder) as webhook:
        took = asyncio.run(_measure(webhook))
        pools = webhook.metric("pools")
    took.sort()
    p99 = took[math.ceil(0.99 * len(took)) - 1]
    said = f"median {1000 * statistics.median(took):.1f} ms, p99 {1000 * p99:.1f} ms, most {1000 * took[-1]:.1f} ms"
    return [(f"{AT_ONCE} reviews at a time, {pools} pools known, {len(took) / SECONDS:.0f} reviews/s", said)]


async def _measure(webhook: Webhook) -> list[float]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    pod: dict[str, Any] = template(engine(args=["--model", "m"]), labels={"kvpool.io/pool": POOL})
    request = {"kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE", "namespace": NAMESPACE}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    body = json.dumps({**review, "request": {**request, "uid": "u", "object": {"kind": "Pod", **pod}}})
    took: list[float] = []
    measured = time.monotonic() + WARM_UP_SECONDS
    until = measured + SECONDS

    async def one(session: aiohttp.ClientSession) -> None:
        while (began := time.monotonic()) < until:
            async with session.post(webhook.url, data=body, headers={"Content-Type": "application/json"}) as answer:
                response = (await answer.json())["response"]
                assert response["allowed"] and response["patch"], response
            if began >= measured:
                took.append(time.monotonic() - began)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=AT_ONCE)) as session:
        await asyncio.gather(*(one(session) for _ in range(AT_ONCE)))
    return took
