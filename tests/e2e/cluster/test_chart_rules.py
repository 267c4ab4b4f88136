"""What the chart makes of its values, rendered by helm itself; and what its rules let the controller do, on a real API
server without nodes."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from cluster import chart
from cluster.chart import CHART, CONTROLLER, WEBHOOK, of_kind
from cluster.kube import Kube, wait_for
from kvpool_contract.names import PEER_PORT
from kvpool_operator.controller.permissions import IN_PLACE, RULES
from kvpool_operator.webhook.server import PATH, PRIVILEGED_PATH

HOME = "kvpool-chart-rules"
STRATEGIC = "application/strategic-merge-patch+json"
IN_PLACE_VALUE = "--set=agent.inPlaceUpdates=true"
PARTS = (CONTROLLER, WEBHOOK)


render, rendered = partial(chart.render, namespace=HOME), partial(chart.rendered, namespace=HOME)


def selected(webhook: dict[str, Any], key: str) -> list[tuple[str, list[str]]]:
    """By what of a namespace it is asked."""
    found = webhook["namespaceSelector"]["matchExpressions"]
    return [(each["operator"], each["values"]) for each in found if each["key"] == key]


def by_name(webhook: dict[str, Any]) -> list[tuple[str, list[str]]]:
    return selected(webhook, "kubernetes.io/metadata.name")


def test_of_a_privileged_namespace_another_path_is_asked_and_each_pod_by_one_webhook(kube: Kube) -> None:
    (registration,) = of_kind(rendered(kube), "MutatingWebhookConfiguration")
    asked = [
        (
            webhook["failurePolicy"],
            webhook["matchConditions"][0]["expression"].startswith("!"),
            webhook["clientConfig"]["service"]["path"],
            selected(webhook, "pod-security.kubernetes.io/enforce"),
        )
        for webhook in registration["webhooks"]
    ]
    others, privileged = [("NotIn", ["privileged"])], [("In", ["privileged"])]
    assert sorted(asked) == [
        ("Fail", False, PATH, others),
        ("Fail", False, PRIVILEGED_PATH, privileged),
        ("Ignore", True, PATH, others),
        ("Ignore", True, PRIVILEGED_PATH, privileged),
    ]


def test_engines_beside_the_operator_are_looked_at_and_its_own_pods_are_not(kube: Kube) -> None:
    documents = rendered(kube)
    (registration,) = of_kind(documents, "MutatingWebhookConfiguration")
    for webhook in registration["webhooks"]:
        assert by_name(webhook) == [("NotIn", ["kube-system"])]
        assert webhook["objectSelector"]["matchExpressions"] == [{"key": "kvpool.io/pool", "operator": "Exists"}]
    deployments = of_kind(documents, "Deployment")
    assert len(deployments) == 2
    for deployment in deployments:
        assert "kvpool.io/pool" not in deployment["spec"]["template"]["metadata"]["labels"]


def test_who_keeps_no_certificates_gets_no_rights_on_them(kube: Kube) -> None:
    def certificate_rules(*values: str) -> list[tuple[str, str, list[str]]]:
        return [
            (role["kind"], resource, rule.get("resourceNames", []))
            for role in rendered(kube, *values)
            if role["kind"] in ("Role", "ClusterRole") and role["metadata"]["name"] != CONTROLLER  # those are RULES
            for rule in role["rules"]
            for resource in rule["resources"]
            if resource in ("secrets", "mutatingwebhookconfigurations")
        ]

    peers, webhook = "kvpool-peers-authority", ["kvpool-webhook-authority", "kvpool-webhook-certificate"]
    assert certificate_rules() == [
        ("ClusterRole", "mutatingwebhookconfigurations", ["injector.kvpool.io"]),
        ("Role", "secrets", []),
        ("Role", "secrets", [peers, *webhook]),
    ]
    assert certificate_rules("--set=webhook.certificates.mode=CertManager") == [
        ("Role", "secrets", []),
        ("Role", "secrets", [peers]),
        ("Role", "secrets", webhook[1:]),  # read: agents trust the signer by it
    ]


def test_told_of_namespaces_the_controller_has_rights_there_alone(kube: Kube) -> None:
    documents = rendered(kube, "--set=controller.namespaces={team-a,team-b}", "--set=webhook.excludedNamespaces={x}")
    roles = of_kind(documents, "Role", CONTROLLER)
    assert [(role["metadata"]["namespace"], role["rules"]) for role in roles] == [("team-a", RULES), ("team-b", RULES)]
    bindings = of_kind(documents, "RoleBinding", CONTROLLER)
    assert [(b["metadata"]["namespace"], b["roleRef"]["kind"]) for b in bindings] == [
        ("team-a", "Role"),
        ("team-b", "Role"),
    ]
    looking = [(r["metadata"].get("namespace"), r["rules"][-1]) for r in of_kind(documents, "Role", WEBHOOK)]
    may_look = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    assert looking == [("team-a", may_look), ("team-b", may_look)]
    (everywhere,) = of_kind(documents, "ClusterRole", WEBHOOK)
    assert [rule["resources"] for rule in everywhere["rules"]] == [["kvcachepools"], ["tokenreviews"]]
    account = {"kind": "ServiceAccount", "name": CONTROLLER, "namespace": HOME}
    assert [b["subjects"] for b in bindings] == [[account]] * 2
    assert of_kind(documents, "ClusterRole", CONTROLLER) == of_kind(documents, "ClusterRoleBinding", CONTROLLER) == []
    (deployment,) = of_kind(documents, "Deployment", CONTROLLER)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["command"][3:5] == ["--namespace=team-a", "--namespace=team-b"]
    (registration,) = of_kind(documents, "MutatingWebhookConfiguration")
    for webhook in registration["webhooks"]:
        assert by_name(webhook) == [("NotIn", ["kube-system", "x"]), ("In", ["team-a", "team-b"])]


@pytest.mark.parametrize(
    ("values", "version", "count"),
    [((), "1.30.0", 1), ((), "1.29.9", 0), (("--set=admissionPolicy.enabled=false",), "1.34.0", 0)],
)
def test_the_policy_is_there_where_the_api_server_knows_it(
    kube: Kube, values: tuple[str, ...], version: str, count: int
) -> None:
    documents = rendered(kube, *values, version=version)
    assert len(of_kind(documents, "ValidatingAdmissionPolicy", CONTROLLER)) == count
    assert len(of_kind(documents, "ValidatingAdmissionPolicyBinding", CONTROLLER)) == count


@pytest.mark.parametrize("without", [("--set=admissionPolicy.enabled=false",), ()], ids=["switched off", "unknown"])
def test_agents_are_not_updated_in_place_without_the_policy(kube: Kube, without: tuple[str, ...]) -> None:
    done = render(kube, *without, IN_PLACE_VALUE, version="1.34.0" if without else "1.29.9")
    assert done.returncode != 0
    assert "agent.inPlaceUpdates needs admissionPolicy.enabled and Kubernetes 1.30" in done.stderr


@pytest.mark.parametrize("place", [(), ("--set=controller.namespaces={team-a}",)], ids=["everywhere", "one namespace"])
def test_the_controller_may_change_pods_only_where_agents_are_updated_in_place(
    kube: Kube, place: tuple[str, ...]
) -> None:
    kind = "Role" if place else "ClusterRole"
    (without,) = of_kind(rendered(kube, *place), kind, CONTROLLER)
    assert without["rules"] == RULES
    documents = rendered(kube, *place, IN_PLACE_VALUE)
    (role,) = of_kind(documents, kind, CONTROLLER)
    assert role["rules"] == [*RULES, IN_PLACE]
    (deployment,) = of_kind(documents, "Deployment", CONTROLLER)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "--update-agents=kvpool/agent:0.1.0" in container["command"]
    (webhook,) = of_kind(documents, "Deployment", "webhook")
    assert "--agent-image=kvpool/agent:0.1.0" in webhook["spec"]["template"]["spec"]["containers"][0]["command"]


def test_webhooks_are_spread_as_the_profile_for_high_availability_says(kube: Kube) -> None:
    def placed(*values: str) -> tuple[Any, ...]:
        controller, webhook = (of_kind(rendered(kube, *values), "Deployment", end)[0]["spec"] for end in PARTS)
        spread = webhook["template"]["spec"]["topologySpreadConstraints"]
        host, zone = ((each["whenUnsatisfiable"], each.get("nodeTaintsPolicy")) for each in spread)
        assert [each["topologyKey"] for each in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
        for each in spread:
            assert each["labelSelector"] == webhook["selector"]
        classes = [part["template"]["spec"].get("priorityClassName") for part in (controller, webhook)]
        return webhook["replicas"], host, zone, *classes

    anyway, system = ("ScheduleAnyway", None), "system-cluster-critical"
    assert placed() == (2, anyway, anyway, None, None)
    profile = ("-f", str(CHART / "values-ha.yaml"))
    assert placed(*profile) == (3, ("DoNotSchedule", "Honor"), anyway, system, system)
    for part in PARTS:
        (deployment,) = of_kind(rendered(kube, *profile), "Deployment", part)
        waits = {t["key"]: t["tolerationSeconds"] for t in deployment["spec"]["template"]["spec"]["tolerations"]}
        assert waits == {"node.kubernetes.io/not-ready": 30, "node.kubernetes.io/unreachable": 30}


def test_of_a_pools_pods_the_members_port_alone_is_kept_from_strangers(kube: Kube) -> None:
    assert of_kind(rendered(kube), "NetworkPolicy") == []
    documents = of_kind(rendered(kube, "--set=networkPolicy.poolNamespaces={team-a,team-b}"), "NetworkPolicy")
    assert [(d["metadata"]["namespace"], d["metadata"]["name"]) for d in documents] == [
        ("team-a", "kvpool-agents"),
        ("team-b", "kvpool-agents"),
    ]
    for document in documents:
        document["metadata"]["namespace"] = "default"
        kube.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=yaml.safe_dump(document))
    (to_all, to_some) = documents[0]["spec"]["ingress"]
    assert "from" not in to_all
    for protocol, kept in (("TCP", {7700, 7701}), ("UDP", set()), ("SCTP", set())):
        ranges = [(p["port"], p["endPort"]) for p in to_all["ports"] if p["protocol"] == protocol]
        opened = {port for first, last in ranges for port in range(first, last + 1)}
        assert set(range(1, 65536)) - opened == kept, protocol
    assert to_some["ports"] == [{"protocol": "TCP", "port": PEER_PORT}]
    members = {"matchExpressions": [{"key": "kvpool.io/pool", "operator": "Exists"}]}
    (controller,) = of_kind(rendered(kube), "Deployment", CONTROLLER)
    assert documents[0]["spec"]["podSelector"] == members
    assert to_some["from"] == [
        {"podSelector": members},
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": HOME}},
            "podSelector": controller["spec"]["selector"],
        },
    ]


@pytest.fixture(scope="module")
def limited(kube: Kube) -> Iterator[Kube]:
    """The controller's account with the chart's roles and policies, and nothing else of the chart."""
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy",
             "ValidatingAdmissionPolicyBinding")  # fmt: skip
    mine = [
        d
        for d in rendered(kube, IN_PLACE_VALUE)
        if d["kind"] in kinds and d["metadata"]["name"] in (CONTROLLER, f"{CONTROLLER}-agents", f"{CONTROLLER}-secrets")
    ]
    assert len(mine) == len(kinds) + 4
    home = Kube(kube.provided, HOME)
    text = yaml.safe_dump_all(mine)
    kube.kubectl("create", "namespace", HOME)
    said = home.kubectl("apply", "-f", "-", stdin=text)
    assert "Warning" not in said.stderr
    yield home
    home.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=text)
    kube.kubectl("delete", "namespace", HOME, "--wait=false")


def written(home: Kube, document: dict[str, Any]) -> str:
    """Empty where the API server takes it from the controller's account, else what it says. Nothing is changed."""
    account = f"--as=system:serviceaccount:{HOME}:{CONTROLLER}"
    done = home.kubectl(
        "-n", document["metadata"]["namespace"],
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", account, "-f", "-",
        stdin=json.dumps({"apiVersion": "v1", **document}), check=False,
    )  # fmt: skip
    return done.stderr if done.returncode else ""


def config_map(name: str, pool: str | None, place: str = HOME) -> dict[str, Any]:
    labels = {} if pool is None else {"kvpool.io/pool": pool}
    metadata = {"name": name, "namespace": place, "labels": labels}
    return {"kind": "ConfigMap", "metadata": metadata, "data": {"x": "1"}}


def service(name: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": HOME, "labels": {"kvpool.io/pool": "chat"}}
    return {"kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 7700}], **spec}}


def test_the_controllers_account_writes_the_objects_of_pools_alone(limited: Kube) -> None:
    system = config_map("kube-root-ca.crt", None, "kube-system")
    wait_for("the policy holds", lambda: "POOL-kvpool" in written(limited, system), 60)
    assert written(limited, config_map("chat-kvpool", "chat")) == ""
    assert written(limited, service("chat-kvpool", clusterIP="None")) == ""

    alone = "a pool's own ConfigMap and Service alone"
    for wrong in (
        config_map("kube-root-ca.crt", "kube-root-ca.crt", "kube-system"),
        config_map("chat", "chat"),
        config_map("chat-kvpool", None),
        config_map("chat-kvpool", "other"),
        service("chat", clusterIP="None"),
    ):
        assert alone in written(limited, wrong), wrong
    assert "headless" in written(limited, service("chat-kvpool"))

    # somebody else's of such a name stays theirs
    limited.kubectl("create", "configmap", "theirs-kvpool")
    assert alone in written(limited, config_map("theirs-kvpool", "theirs"))
    limited.kubectl("label", "configmap", "theirs-kvpool", "kvpool.io/pool=theirs")
    assert written(limited, config_map("theirs-kvpool", "theirs")) == ""

    # and nobody but this account is held to it
    limited.kubectl("-n", "kube-system", "label", "configmap", "kube-root-ca.crt", "a=b", "--dry-run=server")


def test_the_controllers_account_makes_no_secret_that_would_hold_a_token(limited: Kube) -> None:
    def said(name: str, kind: str, place: str) -> str:
        metadata = {"name": name, "annotations": {"kubernetes.io/service-account.name": "default"}}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind}
        account = f"--as=system:serviceaccount:{HOME}:{CONTROLLER}"
        done = limited.kubectl(
            "-n", place, "create", "--dry-run=server", account, "-f", "-", stdin=json.dumps(secret), check=False
        )  # fmt: skip
        return done.stderr if done.returncode else ""

    token = "kubernetes.io/service-account-token"
    wait_for("the policy holds", lambda: "Opaque and kubernetes.io/tls" in said("kvpool-keys", token, "default"), 60)
    assert said("kvpool-keys", "Opaque", "default") == ""
    assert said("kvpool-peers-authority", "Opaque", HOME) == ""
    assert "kvpool-keys alone" in said("other", "Opaque", "default")


def changed(home: Kube, pod: str, patch: dict[str, Any]) -> str:
    """Empty where the API server takes it from the controller's account, else what it says. Nothing is changed."""
    connect: Any = config.new_client_from_config
    account = connect(config_file=str(home.provided.kubeconfig))
    account.set_default_header("Impersonate-User", f"system:serviceaccount:{HOME}:{CONTROLLER}")
    patching: Any = client.CoreV1Api(account)  # kubectl would read the pod first, which the account may not
    try:
        patching.patch_namespaced_pod(pod, HOME, patch, dry_run="All", _content_type=STRATEGIC)
    except client.ApiException as error:
        return str(error.body)
    return ""


def test_the_controllers_account_changes_of_a_pod_the_image_of_its_agent_alone(limited: Kube) -> None:
    spec = {
        "schedulerName": "nobody",
        "containers": [{"name": "engine", "image": "a"}],
        "initContainers": [
            {"name": "first", "image": "a"},
            {"name": "kvpool-agent", "image": "a", "restartPolicy": "Always"},
        ],
    }
    for name, labels in (("member", {"kvpool.io/pool": "chat"}), ("stranger", {})):
        metadata = {"name": name, "labels": labels, "annotations": {"theirs": "1", "more": "1"}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        wait_for("the account", lambda: limited.core.read_namespaced_service_account("default", HOME), 30)
        limited.core.create_namespaced_pod(HOME, pod)

    def image(kind: str, name: str) -> dict[str, Any]:
        return {"spec": {kind: [{"name": name, "image": "b"}]}}

    alone = "the image of kvpool-agent and the annotation kvpool.io/agent-update alone"
    wrong = image("containers", "engine")
    wait_for("the policy holds", lambda: alone in changed(limited, "member", wrong), 60)
    record = {"metadata": {"annotations": {"kvpool.io/agent-update": "{}"}}}
    assert changed(limited, "member", image("initContainers", "kvpool-agent") | record) == ""
    assert alone in changed(limited, "stranger", image("initContainers", "kvpool-agent"))
    read = limited.core.read_namespaced_pod("member", HOME, _preload_content=False)
    tolerations = json.loads(read.data)["spec"]["tolerations"]
    for patch in (
        image("initContainers", "first"),
        {"metadata": {"annotations": {"theirs": "2"}}},
        {"metadata": {"annotations": {"more": None}}},
        {"metadata": {"annotations": {"new": "1"}}},
        {"metadata": {"labels": {"new": "1"}}},
        {"metadata": {"finalizers": ["example.test/held"]}},
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "x"}]}},
        {"spec": {"tolerations": [*tolerations, {"operator": "Exists"}]}},
        {"spec": {"activeDeadlineSeconds": 1}},
    ):
        assert alone in changed(limited, "member", patch), patch
    account = f"--as=system:serviceaccount:{HOME}:{CONTROLLER}"
    deleted = limited.kubectl("delete", "pod", "member", "--dry-run=server", account, check=False)
    assert deleted.returncode != 0
    limited.kubectl("patch", "pod", "member", "--dry-run=server", "-p", json.dumps(wrong))  # nobody else is held to it
