"""The members' authorities, looked after by the controller as the webhook's certificates are, and its own certificate
of them, with which it asks agents for their status. There is one controller, and it is in nobody's way: members go on
with what they have while it is away.
"""

import argparse
import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from kvpool_contract.identity import ALPN, CertificateName, bundle_digest
from kvpool_operator.certificates import apply
from kvpool_operator.certificates.authority import Pair, new_client
from kvpool_operator.certificates.peers import PeerPlan, PeerSettings
from kvpool_operator.certificates.proof import name_of, proves, read_leaf
from kvpool_operator.controller import metrics
from kvpool_operator.desired.adoption import Adoption
from kvpool_operator.desired.pods import Pod
from kvpool_operator.desired.trust import MANAGED, Trust

log = logging.getLogger("kvpool.controller")

LOOK_SECONDS = 60.0
RETRY_SECONDS = 5.0  # also while a new authority waits to sign
LEAF_LIFE = timedelta(days=1)  # of the controller's own certificate


@dataclass(frozen=True)
class IdentitySettings:
    """`signer`: host:port at which agents ask for certificates. `signer_secret`: the Secret of its server, whose
    `ca.crt` says by whom it is vouched for."""

    peers: PeerSettings
    signer: str
    signer_secret: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    given = parser.add_argument_group("the certificates of members, which are kept where --peers-authority is given")
    given.add_argument("--peers-authority", default="", help="Secret of the authority that signs for members")
    given.add_argument("--signer", default="", help="host:port of the signer (default: that of --webhook-service)")


def chosen(options: argparse.Namespace) -> IdentitySettings | None:
    """None where nobody wants members to have certificates. The Secrets lie in the namespace of this pod."""
    if not options.peers_authority:
        return None
    k8s_namespace = os.environ.get("POD_NAMESPACE", "default")
    return IdentitySettings(
        PeerSettings(k8s_namespace, options.peers_authority),
        options.signer or f"{options.webhook_service}.{k8s_namespace}.svc:443",
        options.webhook_certificate,
    )


class Identity:
    """`trust`: what pools are told, None before the first look. `pending`: a new authority waits to sign. To be made
    and used in one event loop."""

    def __init__(
        self,
        api: client.ApiClient,
        settings: IdentitySettings,
        pools: Callable[[], list[tuple[str, str]]],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """pools: the keys of all pools there are; blocks, and raises what the API server's client raises. changed:
        called when pools are to be told something else."""
        self._api, self._settings, self._pools, self._changed = api, settings, pools, changed
        self._cluster = ""
        self._own: tuple[Pair, datetime, ssl.SSLContext] | None = None  # by whom it is signed, and when it is renewed
        self.adoption = Adoption()
        self.trust: Trust | None = None
        self.pending = False

    @property
    def context(self) -> ssl.SSLContext | None:
        """With which agents are asked."""
        return self._own[2] if self._own else None

    def fault(self, pod: Pod, certificate: bytes | None) -> str:
        """Why a certificate (DER) does not prove that this pod has shown it; empty where it does. Of a pool with
        certificates of its user's the name alone is looked at, since the controller reads no Secret of a pool."""
        leaf = read_leaf(certificate) if certificate else None
        name = name_of(leaf) if leaf else None
        if leaf is None or name is None or self.trust is None:
            return "its certificate names nobody"
        if (name.cluster, name.k8s_namespace, name.pool) != (self._cluster, pod.k8s_namespace, pod.pool):
            return "its certificate is of another pool"
        if name.pod and name.pod != pod.uid:
            return "its certificate is of another pod"
        if pod.tls == MANAGED and not (name.pod and proves(leaf, self.trust.peers.encode(), datetime.now(UTC))):
            return "its certificate is not trusted"
        return ""

    async def keep(self) -> None:
        """For ever. A look that fails is repeated soon; until then what is there goes on being right."""
        while True:
            pause, before = LOOK_SECONDS, (self.trust, self.pending)
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
            if (self.trust, self.pending) != before:
                self._changed()
            if self.pending or not (self.trust and self.trust.signer_authorities):
                pause = RETRY_SECONDS
            await asyncio.sleep(pause)

    def _look(self) -> None:
        now = datetime.now(UTC)
        self._cluster = self._cluster or apply.cluster_name(self._api)
        plan, written = apply.reconcile_peers(self._api, self._settings.peers, self._cluster, self._trusted, now)
        namespace = self._settings.peers.k8s_namespace
        signer_authorities = apply.read_bundle(self._api, namespace, self._settings.signer_secret).decode()
        self._certify(plan, now)
        self.trust = Trust(self._cluster, self._settings.signer, plan.bundle.decode(), signer_authorities)
        self.pending = plan.pending
        metrics.AUTHORITY_EXPIRES.set(plan.expires.timestamp())
        if written:
            log.info("the members' authorities are written, valid until %s", plan.expires.isoformat())

    def _trusted(self, bundle: bytes) -> bool:
        return self.adoption.complete(self._pools(), bundle_digest(bundle))

    def _certify(self, plan: PeerPlan, now: datetime) -> None:
        """A certificate of the authority that signs, anew at half of its life."""
        if self._own and self._own[0] == plan.signer and now < self._own[1]:
            return
        pair = new_client(plan.signer, CertificateName(self._cluster).encode(), now, LEAF_LIFE)
        self._own = plan.signer, now + LEAF_LIFE / 2, client_context(pair)


def client_context(pair: Pair) -> ssl.SSLContext:
    """TLS 1.3 with this certificate. Whom it talks to is looked at afterwards, see `Identity.fault`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([ALPN])
    descriptor = os.memfd_create("kvpool-certificate", os.MFD_CLOEXEC)  # the key lies in no file
    try:
        os.write(descriptor, pair.certificate + pair.key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context
