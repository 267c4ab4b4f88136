"""The authorities of the pools' members, looked after by the controller as the webhook's certificates are: there is one
controller, and it is in nobody's way. Members go on with what they have while it is away.
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
from kvpool_operator.certificates.peers import PeerSettings
from kvpool_operator.controller import metrics

log = logging.getLogger("kvpool.controller")

LOOK_SECONDS = 60.0
RETRY_SECONDS = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    given = parser.add_argument_group("the certificates of members, which are kept where --peers-authority is given")
    given.add_argument("--peers-authority", default="", help="Secret of the authority that signs for members")


def chosen(options: argparse.Namespace) -> PeerSettings | None:
    """None where nobody wants members to have certificates. The Secret lies in the namespace of this pod."""
    if not options.peers_authority:
        return None
    return PeerSettings(os.environ.get("POD_NAMESPACE", "default"), options.peers_authority)


class Identity:
    """To be made and used in one event loop."""

    def __init__(self, api: client.ApiClient, settings: PeerSettings) -> None:
        self._api, self._settings = api, settings
        self._cluster = ""

    async def keep(self) -> None:
        """For ever. A look that fails is repeated soon; until then what is there goes on being right."""
        while True:
            pause = LOOK_SECONDS
            try:
                await asyncio.to_thread(self._look)
            except (ApiException, HTTPError, OSError) as error:
                pause = RETRY_SECONDS
                metrics.AUTHORITIES.labels("failed").inc()
                log.warning("the members' authorities: %s", " ".join(str(error).split()) or repr(error))
            except Exception:
                metrics.AUTHORITIES.labels("failed").inc()
                log.exception("the members' authorities can't be looked after")
            else:
                metrics.AUTHORITIES.labels("ok").inc()
            await asyncio.sleep(pause)

    def _look(self) -> None:
        self._cluster = self._cluster or apply.cluster_name(self._api)
        wanted, changed = apply.reconcile_peers(
            self._api, self._settings, self._cluster, lambda _bundle: True, datetime.now(UTC)
        )
        metrics.AUTHORITY_EXPIRES.set(wanted.expires.timestamp())
        if changed:
            log.info("the members' authorities are written, valid until %s", wanted.expires.isoformat())
