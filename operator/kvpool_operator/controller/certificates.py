"""The webhook's certificates, looked after by the controller: there is one of it, and it is never in a review's way.

A look every minute costs three reads. It also puts the bundle back where somebody has registered the webhook anew.
"""

import argparse
import asyncio
import logging
import os
from datetime import UTC, datetime

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from kvpool_operator.certificates import apply
from kvpool_operator.certificates.plan import Settings
from kvpool_operator.controller import metrics

log = logging.getLogger("kvpool.controller")

LOOK_SECONDS = 60.0
RETRY_SECONDS = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    given = parser.add_argument_group("the webhook's certificates, which are kept where --webhook is given")
    given.add_argument("--webhook", default="", help="name of its MutatingWebhookConfiguration")
    given.add_argument("--webhook-service", default="kvpool-webhook", help="name of its Service (default %(default)s)")
    given.add_argument("--webhook-certificate", default="kvpool-webhook-certificate", help="Secret that it mounts")
    given.add_argument("--webhook-authority", default="kvpool-webhook-authority", help="Secret of the controller alone")


def chosen(options: argparse.Namespace) -> Settings | None:
    """None where nobody wants certificates. Service and Secrets lie in the namespace of this pod."""
    if not options.webhook:
        return None
    return Settings(
        k8s_namespace=os.environ.get("POD_NAMESPACE", "default"),
        service=options.webhook_service,
        webhook=options.webhook,
        authority_secret=options.webhook_authority,
        leaf_secret=options.webhook_certificate,
    )


async def keep(api: client.ApiClient, settings: Settings) -> None:
    """For ever. A look that fails is repeated soon; until then what is there goes on being right. So is one that finds
    no webhook registered: once it is, pods start bare until it is trusted."""
    registered = True
    while True:
        pause = LOOK_SECONDS
        try:
            outcome = await asyncio.to_thread(apply.reconcile, api, settings, datetime.now(UTC))
        except (ApiException, HTTPError, OSError) as error:
            pause = RETRY_SECONDS
            metrics.CERTIFICATES.labels("failed").inc()
            log.warning("the webhook's certificates: %s", " ".join(str(error).split()) or repr(error))
        except Exception:
            metrics.CERTIFICATES.labels("failed").inc()
            log.exception("the webhook's certificates can't be looked after")
        else:
            metrics.CERTIFICATES.labels("ok").inc()
            metrics.LEAF_EXPIRES.set(outcome.leaf_expires.timestamp())
            if outcome.written:
                log.info("the webhook's certificates: %s written", ", ".join(outcome.written))
            if not outcome.registered:
                pause = RETRY_SECONDS
                if registered:
                    log.warning(
                        "there is no MutatingWebhookConfiguration %s; nobody asks the webhook", settings.webhook
                    )
            registered = outcome.registered
        await asyncio.sleep(pause)
