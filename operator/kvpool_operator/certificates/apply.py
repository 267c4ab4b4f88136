"""Brings Secrets and the webhook's configuration to the plans, in the order that keeps every moment in between right:
the authorities first, then the trust in them, the leaf last.

Calls the API server synchronously, with the Kubernetes client. Each write says which version it replaces, so two
controllers that overlap for a moment can't mix their keys: one of them gets a conflict and tries again.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kubernetes import client

from kvpool_operator.certificates.peers import PeerPlan, PeerSettings, plan_peers
from kvpool_operator.certificates.plan import BUNDLE, Plan, Settings, plan

_TIMEOUT = 10  # seconds, of one call


@dataclass(frozen=True)
class Outcome:
    """`written`: what was changed (`authorities`, `bundle`, `leaf`). `registered`: whether the webhook's configuration
    is there; without it the leaf waits for nobody's trust. Expiries and `next_change` as in the plan."""

    written: tuple[str, ...]
    registered: bool
    authority_expires: datetime
    leaf_expires: datetime
    next_change: datetime


def reconcile(api: client.ApiClient, settings: Settings, now: datetime) -> Outcome:
    """Does what has to be done at `now`; without anything to do, it reads three objects and writes none. Raises
    ApiException; what was done until then is right as it is, and a later call goes on from there."""
    core: Any = client.CoreV1Api(api)
    registration: Any = client.AdmissionregistrationV1Api(api)
    authorities = _read(core, settings.k8s_namespace, settings.authority_secret)
    leaf = _read(core, settings.k8s_namespace, settings.leaf_secret)
    wanted = plan(now, _data(authorities), _data(leaf), settings)
    written = []
    if _data(authorities) != wanted.authorities:
        _write(core, settings.k8s_namespace, settings.authority_secret, authorities, wanted.authorities, "Opaque")
        written.append("authorities")
    registered, changed = _trust(registration, settings.webhook, wanted)
    if changed:
        written.append("bundle")
    if _data(leaf) != wanted.leaf:
        _write(core, settings.k8s_namespace, settings.leaf_secret, leaf, wanted.leaf, "kubernetes.io/tls")
        written.append("leaf")
    return Outcome(tuple(written), registered, wanted.authority_expires, wanted.leaf_expires, wanted.next_change)


def reconcile_peers(
    api: client.ApiClient, settings: PeerSettings, cluster: str, trusted: Callable[[bytes], bool], now: datetime
) -> tuple[PeerPlan, bool]:
    """The plan for the peers' authorities, and whether its Secret had to be written. Raises ApiException."""
    core: Any = client.CoreV1Api(api)
    found = _read(core, settings.k8s_namespace, settings.secret)
    wanted = plan_peers(now, _data(found), cluster, settings, trusted)
    if _data(found) == wanted.secret:
        return wanted, False
    _write(core, settings.k8s_namespace, settings.secret, found, wanted.secret, "Opaque")
    return wanted, True


def read_bundle(api: client.ApiClient, k8s_namespace: str, leaf_secret: str) -> bytes:
    """The authorities (PEM) that vouch for the webhook's server, whoever keeps its certificate; empty where there are
    none yet. Raises ApiException."""
    return _data(_read(client.CoreV1Api(api), k8s_namespace, leaf_secret)).get(BUNDLE, b"")


def cluster_name(api: client.ApiClient) -> str:
    """What the cluster is called in certificates: the UID of kube-system, which every cluster has once. Raises
    ApiException."""
    core: Any = client.CoreV1Api(api)
    return str(core.read_namespace("kube-system", _request_timeout=_TIMEOUT).metadata.uid)


def _read(core: Any, k8s_namespace: str, name: str) -> Any:
    try:
        return core.read_namespaced_secret(name, k8s_namespace, _request_timeout=_TIMEOUT)
    except client.ApiException as error:
        if error.status == 404:
            return None
        raise


def _data(secret: Any) -> dict[str, bytes]:
    if secret is None:
        return {}
    found = {}
    for name, text in (secret.data or {}).items():
        found[str(name)] = base64.b64decode(text)
    return found


def _write(core: Any, k8s_namespace: str, name: str, before: Any, data: dict[str, bytes], kind: str) -> None:
    encoded: dict[str, Any] = {entry: base64.b64encode(value).decode() for entry, value in data.items()}
    if before is not None:
        before.data = encoded
        core.replace_namespaced_secret(name, k8s_namespace, before, _request_timeout=_TIMEOUT)
        return
    metadata = client.V1ObjectMeta(name=name, labels={"app.kubernetes.io/part-of": "kvpool"})
    secret = client.V1Secret(metadata=metadata, data=encoded, type=kind)
    core.create_namespaced_secret(k8s_namespace, secret, _request_timeout=_TIMEOUT)


def _trust(registration: Any, name: str, wanted: Plan) -> tuple[bool, bool]:
    """Whether the configuration is there, and whether its bundle was changed."""
    try:
        found = registration.read_mutating_webhook_configuration(name, _request_timeout=_TIMEOUT)
    except client.ApiException as error:
        if error.status == 404:
            return False, False
        raise
    bundle = base64.b64encode(wanted.bundle).decode()
    stale = [n for n, webhook in enumerate(found.webhooks or []) if webhook.client_config.ca_bundle != bundle]
    if not stale:
        return True, False
    patch: list[dict[str, str]] = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": found.metadata.resource_version},
        *({"op": "add", "path": f"/webhooks/{n}/clientConfig/caBundle", "value": bundle} for n in stale),
    ]
    registration.patch_mutating_webhook_configuration(name, patch, _request_timeout=_TIMEOUT)
    return True, True
