"""The chart over its life: what it may do, upgrades and rollbacks, and its removal and return under running pods."""

import json
import socket
from collections import Counter
from typing import Any

import pytest
from kubernetes import client, config

from cluster.chart import CHART, CONTROLLER, NAMESPACE, REGISTRATION, REGISTRY, RELEASE, WEBHOOK, Chart
from cluster.images import AGENT_IMAGE
from cluster.installed.conftest import HOT_BLOCKS
from cluster.installed.test_parts_away import JOINED, joins
from cluster.kube import wait_for
from cluster.standins import Served, StandIns, ask
from kvpool_cli import forward

BLOCKS, PAGE_PORT = HOT_BLOCKS, 8082
HIGHLY_AVAILABLE = ("-f", str(CHART / "values-ha.yaml"))
DEFINITION, HELM = "kvcachepools.kvpool.io", "meta.helm.sh"
SUBRESOURCES = ("exec", "status", "token")
VALUES = (
    (),
    (
        "--set=networkPolicy.enabled=true",
        f"--set=networkPolicy.poolNamespaces={{{NAMESPACE}}}",
        "--set=webhook.excludedNamespaces={a,b}",
        "--set=webhook.oldestNode=1.29",
        "--set=dashboard.enabled=true",
    ),
    (
        f"--set=image.digest=sha256:{64 * chr(48)}",
        "--set=global.imagePullSecrets={a}",
        "--set=controller.priorityClassName=x",
    ),
    ("--set=crds.enabled=false", "--set=webhook.tolerations[0].key=a", "--set=webhook.nodeSelector.a=b"),
    HIGHLY_AVAILABLE,
)
MAY_NOT = (
    ("controller", "get", "secrets", ""),
    ("controller", "list", "secrets", NAMESPACE),
    ("controller", "get", "secrets/other", NAMESPACE),
    ("controller", "delete", "secrets/kvpool-webhook-authority", NAMESPACE),
    ("controller", "get", "secrets/kvpool-peers-authority", "default"),
    ("controller", "create", "tokenreviews.authentication.k8s.io", ""),
    ("controller", "list", "secrets", "default"),
    ("controller", "get", "secrets/other", "default"),
    ("controller", "patch", "secrets/other", "default"),
    ("controller", "get", "pods", ""),
    ("controller", "create", "pods", ""),
    ("controller", "patch", "pods", ""),
    ("controller", "update", "pods", ""),
    ("controller", "delete", "pods", ""),
    ("controller", "create", "pods/exec", ""),
    ("controller", "patch", "deployments.apps", ""),
    ("controller", "patch", "kvcachepools.kvpool.io", ""),
    ("controller", "delete", "kvcachepools.kvpool.io", ""),
    ("controller", "delete", "configmaps", ""),
    ("controller", "list", "configmaps", ""),
    ("controller", "delete", "services", ""),
    ("controller", "patch", "events", ""),
    ("controller", "patch", "mutatingwebhookconfigurations.admissionregistration.k8s.io/other", ""),
    ("controller", "delete", f"mutatingwebhookconfigurations.admissionregistration.k8s.io/{REGISTRATION}", ""),
    ("controller", "create", "mutatingwebhookconfigurations.admissionregistration.k8s.io", ""),
    ("controller", "patch", "customresourcedefinitions.apiextensions.k8s.io", ""),
    ("controller", "get", "nodes", ""),
    ("controller", "get", "namespaces", ""),
    ("webhook", "patch", "kvcachepools.kvpool.io", ""),
    ("webhook", "update", "kvcachepools.kvpool.io/status", ""),
    ("webhook", "list", "pods", ""),
    ("webhook", "create", "pods/exec", ""),
    ("webhook", "create", "serviceaccounts/token", ""),
    ("webhook", "create", "subjectaccessreviews.authorization.k8s.io", ""),
    ("webhook", "get", "secrets/kvpool-peers-authority", NAMESPACE),
    ("webhook", "get", "secrets/kvpool-webhook-certificate", NAMESPACE),
    ("webhook", "get", "secrets/kvpool-webhook-authority", NAMESPACE),
    ("webhook", "get", "configmaps", ""),
    ("webhook", "create", "events", ""),
)
MAY = (
    ("controller", "create", "secrets", "default"),  # held to kvpool-keys by a policy, see test_chart_rules.py
    ("controller", "update", "secrets/kvpool-webhook-authority", NAMESPACE),
    ("controller", "patch", f"mutatingwebhookconfigurations.admissionregistration.k8s.io/{REGISTRATION}", ""),
    ("controller", "list", "pods", ""),
    ("controller", "update", "secrets/kvpool-peers-authority", NAMESPACE),
    ("controller", "get", "namespaces/kube-system", ""),
    ("webhook", "create", "tokenreviews.authentication.k8s.io", ""),
    ("webhook", "get", "pods", ""),
    ("webhook", "watch", "kvcachepools.kvpool.io", ""),
)


@pytest.mark.parametrize("values", VALUES, ids=["default", "network", "images", "placement", "ha"])
def test_what_the_chart_makes_of_its_values_is_taken_by_the_api_server(chart: Chart, values: tuple[str, ...]) -> None:
    linted = chart.helm("lint", "--strict", str(CHART), *values)
    assert "0 chart(s) failed" in linted.stdout
    made = chart.helm("template", RELEASE, str(CHART), "-n", NAMESPACE, "--kube-version", "1.34.0", *values).stdout
    taken = chart.kubectl("apply", "--dry-run=server", "-f", "-", "-o", "name", stdin=made)
    assert len(taken.stdout.splitlines()) >= 13
    assert "unknown field" not in taken.stderr


def test_a_value_that_does_not_exist_is_refused_by_name(chart: Chart) -> None:
    refused = chart.helm("template", RELEASE, str(CHART), "--set=webhook.replica=3", check=False)
    assert refused.returncode != 0
    assert "replica" in refused.stderr and "webhook" in refused.stderr


def access(what: str, verb: str, namespace: str) -> dict[str, str]:
    """The attributes of a review, of `resource.group/name`, or `resource/subresource`."""
    resource, _, name = what.partition("/")
    plural, _, group = resource.partition(".")
    part = "subresource" if name in SUBRESOURCES else "name"
    return {"verb": verb, "resource": plural, "group": group, "namespace": namespace, part: name}


def test_the_accounts_may_do_what_they_need_and_nothing_beyond(chart: Chart) -> None:
    def may(account: str, verb: str, what: str, namespace: str) -> bool:
        connect: Any = config.new_client_from_config
        asking = connect(config_file=str(chart.provided.kubeconfig))
        asking.set_default_header("Impersonate-User", f"system:serviceaccount:{NAMESPACE}:kvpool-{account}")
        review = {"spec": {"resourceAttributes": access(what, verb, namespace)}}
        told = client.AuthorizationV1Api(asking).create_self_subject_access_review(review).status
        assert not told.evaluation_error
        return bool(told.allowed)

    assert [asked for asked in MAY if not may(*asked)] == []
    assert [asked for asked in MAY_NOT if may(*asked)] == []


def test_pods_of_the_operator_are_as_locked_down_as_they_claim(chart: Chart) -> None:
    """Pod Security's restricted profile takes them, their root is read-only, and a node can be drained."""
    chart.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted", "--overwrite")
    for name in (CONTROLLER, WEBHOOK):
        template = chart.deployment(name)["spec"]["template"]
        (container,) = template["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{name}-dry"}, "spec": template["spec"]}
        chart.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
    wait_for("one of two may go", lambda: allows(chart, desired=1), 60)


def allows(chart: Chart, desired: int) -> bool:
    """Whether so many webhooks have to stay and one may go, which Kubernetes counts a moment after their readiness."""
    budget = json.loads(chart.kubectl("get", "pdb", WEBHOOK, "-o", "json").stdout)["status"]
    if (found := (budget["desiredHealthy"], budget["disruptionsAllowed"])) != (desired, 1):
        raise ValueError(found)
    return True


def webhooks_by_node(chart: Chart) -> list[int]:
    """How many ready webhooks each node has, while there are no others but ending ones."""
    listed = chart.core.list_namespaced_pod(NAMESPACE, label_selector="app.kubernetes.io/component=webhook").items
    living = [pod for pod in listed if not pod.metadata.deletion_timestamp]
    if len(living) != chart.deployment(WEBHOOK)["status"].get("readyReplicas", 0):
        raise ValueError([pod.metadata.name for pod in living])
    return sorted(Counter(pod.spec.node_name for pod in living).values())


def test_the_page_of_the_pools_is_reached_by_a_port_forward_alone(chart: Chart) -> None:
    listed: Any = chart.core.list_namespaced_pod(NAMESPACE, label_selector="app.kubernetes.io/component=controller")
    (pod,) = listed.items
    settings = chart.core.api_client.configuration
    page = forward.get(settings, NAMESPACE, pod.metadata.name, "/", 10, port=PAGE_PORT)
    assert b"<h1>Pools</h1>" in page
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((pod.status.pod_ip, PAGE_PORT), 10)


def test_an_upgrade_and_a_rollback_keep_the_trust_the_pools_and_the_running_pods(
    chart: Chart, lasting: StandIns, hot: list[int]
) -> None:
    before, trusted = lasting.pods("app=chat"), chart.bundles()
    assert len(trusted) == 1 and "" not in trusted
    revision = chart.registration()["metadata"]["generation"]
    chart.upgrade(*HIGHLY_AVAILABLE, "--set=webhook.timeoutSeconds=7", "--set=agent.image.tag=next")
    assert chart.registration()["metadata"]["generation"] > revision
    assert {each["timeoutSeconds"] for each in chart.registration()["webhooks"]} == {7}
    assert chart.bundles() == trusted
    # helm waits for the new ones, and not for the end of those before them
    wait_for("three webhooks on both nodes", lambda: webhooks_by_node(chart) == [1, 2], 60)
    wait_for("one of three may go", lambda: allows(chart, desired=2), 60)
    lasting.wait_new_pods("registry.example/kvpool/agent:next")

    chart.helm("rollback", RELEASE, "-n", NAMESPACE, "--wait")
    assert {each["timeoutSeconds"] for each in chart.registration()["webhooks"]} == {10}
    assert chart.bundles() == trusted
    lasting.wait_new_pods(AGENT_IMAGE)

    # the pods that ran have noticed nothing
    assert lasting.pods("app=chat") == before
    assert [ask(pod.address, hot) for pod in before] == [Served(host=BLOCKS)] * 2
    lasting.wait_status(phase="Ready", ready="2/2")


def test_uninstalled_under_running_pods_they_share_on_and_a_new_installation_finds_the_pools(
    chart: Chart, lasting: StandIns, hot: list[int]
) -> None:
    before = lasting.pods("app=chat")
    install = ("install", RELEASE, str(CHART), "-n", NAMESPACE, "--wait", REGISTRY)
    chart.uninstall()
    try:
        # what is left: definition and pools with what they made, and the certificates, which only a new one needs
        left = chart.kubectl("get", "all,pdb,serviceaccounts", "-l", "app.kubernetes.io/name=kvpool", "-o", "name")
        assert [line for line in left.stdout.splitlines() if not line.startswith("pod/")] == []
        assert chart.kubectl("get", "mutatingwebhookconfiguration", REGISTRATION, check=False).returncode != 0
        assert set(lasting.kubectl("get", "kvp,cm,svc", "-o", "name").stdout.split()) == {
            "kvcachepool.kvpool.io/chat",
            "configmap/chat-kvpool",
            "configmap/kube-root-ca.crt",
            "service/chat",
            "service/chat-kvpool",
        }
        lasting.heat("more", BLOCKS)
        assert [ask(pod.address, hot) for pod in before] == [Served(host=BLOCKS)] * 2
        assert lasting.pods("app=chat") == before
        # the definition, as somebody has it who has applied crds/ by hand
        chart.kubectl("annotate", "crd", DEFINITION, f"{HELM}/release-name-", f"{HELM}/release-namespace-")
        refused = chart.helm(*install, check=False)
        assert refused.returncode != 0 and "invalid ownership metadata" in refused.stderr
    finally:
        chart.helm(*install, "--take-ownership")
    wait_for("pods join", lambda: joins(lasting), 60)
    lasting.scale("chat", 3)
    (third,) = (m for m in lasting.wait_ready(3) if m.pod not in before)
    assert lasting.containers()[third.pod.name] == JOINED
    assert (third.status().state, third.status().warm.loaded_blocks) == ("Ready(warm)", 2 * BLOCKS)
    lasting.wait_status(phase="Ready", ready="3/3")
