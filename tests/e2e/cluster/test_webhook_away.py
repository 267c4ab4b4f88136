"""A webhook that is away, that hangs, or that shows a certificate which has expired: labelled pods start bare, those
that require the pool are refused, and pods without the label never notice."""

import contextlib
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from kubernetes import client

from cluster.admitted import TEAM, create_pool, created, is_joined, pod, refused, skipped, wait_joined
from cluster.kube import Kube, wait_for
from cluster.webhook import SETTINGS, Webhook, namespace, pool, running

REVIEW_SECONDS = 4  # how long the API server waits for a review here
REFUSED = r"failed calling webhook .*require\.kvpool\.io"


@pytest.fixture(scope="module")
def webhook(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    with running(kube, tmp_path_factory.mktemp("webhook")) as running_webhook:
        namespace(kube, TEAM)
        create_pool(kube, pool("chat", TEAM))
        running_webhook.patch_registration("timeoutSeconds", REVIEW_SECONDS)
        yield running_webhook


@contextlib.contextmanager
def away(webhook: Webhook) -> Iterator[None]:
    webhook.stop()
    try:
        yield
    finally:
        webhook.start()
        webhook.wait_ready()


@contextlib.contextmanager
def hanging(webhook: Webhook) -> Iterator[None]:
    webhook.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        webhook.signal(signal.SIGCONT)


@contextlib.contextmanager
def expired(webhook: Webhook) -> Iterator[None]:
    shown = webhook.shown()
    for name in (SETTINGS.authority_secret, SETTINGS.leaf_secret):
        webhook.kube.core.delete_namespaced_secret(name, SETTINGS.k8s_namespace)
    webhook.certify(datetime.now(UTC) - SETTINGS.leaf_life - timedelta(days=1))
    wait_for("the expired certificate is shown", lambda: webhook.shown() != shown, 30)
    webhook.forget_connections()
    yield
    webhook.certify()


@pytest.mark.parametrize("trouble", [away, hanging, expired])
def test_labelled_pods_start_bare_and_others_never_notice(
    kube: Kube, webhook: Webhook, trouble: "type[contextlib.AbstractContextManager[None]]"
) -> None:
    unlabelled = pod()
    unlabelled["metadata"]["labels"] = {"app": "x"}
    wait_joined(kube)
    reviews = webhook.metric("reviews_total")
    created(kube, unlabelled)
    assert webhook.metric("reviews_total") == reviews
    with trouble(webhook):
        wait_for("labelled pods start bare", lambda: not is_joined(created(kube, pod())), 30)
        after = created(kube, pod())
        assert (is_joined(after), skipped(after)) == (False, None)
        with pytest.raises(client.ApiException, match=REFUSED):
            created(kube, pod(annotations={"kvpool.io/require": "true"}))
        with webhook.refusing():
            wait_for("labelled pods are refused", lambda: refused(kube), 30)
            created(kube, unlabelled)  # which would be refused, too, if the webhook were asked
    wait_joined(kube)
