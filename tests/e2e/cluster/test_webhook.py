"""The webhook at a real API server: what comes out of admission, and what never goes wrong there.

Most pods are created as a dry run: all of admission, and no pod. The rest can't be scheduled anywhere.
"""

import copy
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from kubernetes import client

from cluster.admitted import (
    ELSEWHERE,
    TEAM,
    Stream,
    comparable,
    create_pool,
    created,
    is_joined,
    joined_in,
    pod,
    qos_class,
    skipped,
    wait_joined,
)
from cluster.controllers import Controller
from cluster.kube import Kube, wait_for
from cluster.webhook import (
    AGENT_IMAGE,
    CONFIGURATION,
    ENFORCE,
    NAMESPACE,
    SETTINGS,
    Mesh,
    Webhook,
    in_parallel,
    namespace,
    pool,
    registration,
    running,
    unseen_namespace,
)
from kvpool_cli.main import main
from kvpool_operator.certificates import plan
from kvpool_operator.inject import restore

SHAPES = Path(__file__).resolve().parents[2] / "unit" / "golden" / "pods"
TOKEN_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"


@pytest.fixture(scope="module")
def webhook(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    with running(kube, tmp_path_factory.mktemp("webhook")) as running_webhook:
        namespace(kube, TEAM)
        create_pool(kube, pool("chat", TEAM))
        yield running_webhook


def test_pods_of_every_shape_come_out_as_the_command_writes_them(kube: Kube, webhook: Webhook, tmp_path: Path) -> None:
    unseen_namespace(kube, ELSEWHERE)
    joined = left = 0
    for path in sorted(SHAPES.glob("*.yaml")):
        shape = yaml.safe_load(path.read_text())
        if path.stem == "mirror":
            continue  # the API server takes them from kubelets alone
        given, name = copy.deepcopy(shape["given"]), "chat"
        if shape["pool"]:
            name = path.stem
            create_pool(kube, pool(name, TEAM, **shape["pool"]))
        if path.stem != "other-pool":
            given["metadata"]["labels"]["kvpool.io/pool"] = name
        given = {"apiVersion": "v1", "kind": "Pod", **given}
        given["metadata"]["name"] = "x"
        given["spec"] = {**given["spec"], "automountServiceAccountToken": False}
        # What admission makes of it, and what it makes elsewhere of what the command prints.
        admitted = created(kube, given)
        if "skipped" in shape:
            expected = "pool_unknown" if path.stem == "other-pool" else shape["skipped"]
            assert (path.stem, skipped(admitted)) == (path.stem, expected)
            left += 1
            continue
        (tmp_path / "pool.yaml").write_text(yaml.safe_dump(pool(name, ELSEWHERE, **shape["pool"])))
        command = ["inject", "-f", "-", "--pool", str(tmp_path / "pool.yaml"), "--image", AGENT_IMAGE]
        printed = CliRunner().invoke(main, command, input=yaml.safe_dump(given))
        assert printed.exit_code == 0, printed.output
        *_, written = yaml.safe_load_all(printed.stdout)
        taken = created(kube, written, ELSEWHERE)
        bare = created(kube, given, ELSEWHERE)
        assert comparable(restore(admitted)) == comparable(bare), path.stem
        assert comparable(admitted) == comparable(taken) != comparable(bare), path.stem
        assert (qos_class(admitted) == "Guaranteed") == (qos_class(bare) == "Guaranteed") == ("guaranteed" in path.stem)
        # printed by the command, and then seen by the webhook as well
        both = created(kube, {**written, "metadata": {**written["metadata"], "namespace": TEAM}})
        assert comparable(both) == comparable(admitted), path.stem
        joined += 1
    assert (joined, left) == (36, 15)


def test_the_api_token_stays_out_of_kvpools_containers(kube: Kube, webhook: Webhook) -> None:
    after = created(kube, pod(automountServiceAccountToken=True))["spec"]
    mounts = {
        container["name"]: [m["name"] for m in container["volumeMounts"] if m["mountPath"] == TOKEN_DIR]
        for container in [*after["initContainers"], *after["containers"]]
    }
    assert mounts["kvpool-agent"] == mounts["kvpool-client"] == ["kvpool-no-token"]
    assert [name.startswith("kube-api-access-") for name in mounts["engine"]] == [True]


def test_a_mesh_comes_after_and_everybody_keeps_their_part(kube: Kube, webhook: Webhook) -> None:
    mesh = Mesh(webhook.files)
    theirs = registration(mesh.url, name="istio-sidecar-injector")
    ours = webhook.api.read_mutating_webhook_configuration(CONFIGURATION)
    del theirs["webhooks"][1:]
    theirs["webhooks"][0]["clientConfig"]["caBundle"] = ours.webhooks[0].client_config.ca_bundle
    webhook.api.create_mutating_webhook_configuration(theirs)
    try:

        def both() -> dict[str, Any] | None:
            document = created(kube, pod())
            return document if len(document["spec"]["containers"]) == 2 else None

        before = webhook.metric("reviews_total", outcome="injected")
        after = wait_for("both webhooks are called", both, 30)
        assert webhook.metric("reviews_total", outcome="injected") - before >= 2
    finally:
        webhook.api.delete_mutating_webhook_configuration("istio-sidecar-injector")
        mesh.close()
    first = mesh.seen[0]
    assert is_joined(first)
    assert first["metadata"]["annotations"]["traffic.sidecar.istio.io/excludeInboundPorts"] == "7700,7701,7702"
    assert is_joined(after)
    proxy, engine = after["spec"]["containers"]
    assert (proxy["name"], engine["name"]) == ("istio-proxy", "engine")
    names = [variable["name"] for variable in engine["env"]]
    assert sorted(names) == ["KVPOOL_CLIENT_CONFIG", "PYTHONPATH", "THEIRS"]


def test_restricted_namespaces_and_quotas_take_the_pod(kube: Kube, webhook: Webhook) -> None:
    namespace(kube, "kvpool-webhook-strict", **{ENFORCE: "restricted"})
    create_pool(kube, pool("chat", "kvpool-webhook-strict"))
    safe = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    engine = {"name": "engine", "image": "vllm:1", "securityContext": safe}
    context = {"runAsNonRoot": True, "runAsUser": 2000, "fsGroup": 3000, "seccompProfile": {"type": "RuntimeDefault"}}
    strict = pod(containers=[engine], securityContext=context)
    joined_in(kube, strict, "kvpool-webhook-strict")
    with pytest.raises(client.ApiException, match="violates PodSecurity"):
        created(kube, pod(), "kvpool-webhook-strict")

    namespace(kube, "kvpool-webhook-quota")
    create_pool(kube, pool("chat", "kvpool-webhook-quota"))
    hard = {f"{kind}.{name}": "1000Gi" for kind in ("requests", "limits") for name in ("memory", "ephemeral-storage")}
    hard |= {"requests.cpu": "100", "limits.cpu": "100"}
    kube.core.create_namespaced_resource_quota(
        "kvpool-webhook-quota", {"metadata": {"name": "q"}, "spec": {"hard": hard}}
    )
    wait_for(
        "the quota counts",
        lambda: kube.core.read_namespaced_resource_quota("q", "kvpool-webhook-quota").status.used,
        30,
    )
    amounts = {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}
    full = {"name": "engine", "image": "vllm:1", "resources": {"limits": amounts}}
    after = joined_in(kube, pod(containers=[full]), "kvpool-webhook-quota")
    assert qos_class(after) == "Guaranteed"
    with pytest.raises(client.ApiException, match=r"must specify limits\.cpu for: engine"):
        created(kube, pod(), "kvpool-webhook-quota")

    limits = {"type": "Container", "default": amounts, "defaultRequest": {**amounts, "memory": "512Mi"}}
    body = {"metadata": {"name": "l"}, "spec": {"limits": [limits]}}
    kube.core.create_namespaced_limit_range("kvpool-webhook-quota", body)
    plain = joined_in(kube, pod(), "kvpool-webhook-quota")
    agent = plain["spec"]["initContainers"][1]["resources"]
    assert agent["limits"] == {"cpu": "2", "memory": "8736Mi", "ephemeral-storage": "256Mi"}
    assert plain["spec"]["containers"][0]["resources"]["limits"]["memory"] == "5Gi"  # the default, and the host pool


@pytest.mark.parametrize("profile", ["privileged", "baseline", "restricted"])
def test_root_with_ipc_lock_is_for_privileged_namespaces_alone_and_every_pod_is_admitted(
    kube: Kube, webhook: Webhook, profile: str
) -> None:
    place = namespace(kube, f"kvpool-webhook-{profile}", **{ENFORCE: profile})
    create_pool(kube, pool("chat", place, transport={"rdma": {"memlock": "IPCLock", "allowUnencrypted": True}}))
    strict = {
        "runAsNonRoot": True, "runAsUser": 2000, "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    containers = [{"name": "engine", "image": "vllm:1", "securityContext": strict}]
    after = joined_in(kube, pod(containers=containers), place)
    client_made, agent = after["spec"]["initContainers"]
    told = {each["name"]: each.get("value") for each in agent["env"]}
    if profile != "privileged":
        assert agent["securityContext"] == client_made["securityContext"]
        assert told["KVPOOL_IPC_LOCK_WITHHELD"] == "rdma_ipc_lock_namespace"
        return
    context = agent["securityContext"]
    assert (context["runAsUser"], context["runAsNonRoot"]) == (0, False)
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert "KVPOOL_IPC_LOCK_WITHHELD" not in told
    bound = joined_in(kube, pod(containers=containers, securityContext={"runAsNonRoot": True}), place)
    told = {each["name"]: each.get("value") for each in bound["spec"]["initContainers"][1]["env"]}
    assert told["KVPOOL_IPC_LOCK_WITHHELD"] == "rdma_ipc_lock_pod"
    # in a namespace of another profile the API server would have refused it
    elsewhere = unseen_namespace(kube, "kvpool-webhook-unseen", **{ENFORCE: "baseline"})
    with pytest.raises(client.ApiException, match=r"violates PodSecurity.*IPC_LOCK"):
        created(kube, {**pod(), "spec": after["spec"]}, elsewhere)


def test_no_pool_a_wrong_pool_and_pods_that_insist(kube: Kube, webhook: Webhook) -> None:
    body = pod()
    body["metadata"]["labels"]["kvpool.io/pool"] = "nobody"
    before = webhook.metric("skipped_total", reason="pool_unknown")
    after = created(kube, body)
    assert (is_joined(after), skipped(after)) == (False, "pool_unknown")
    assert after["spec"]["containers"][0].keys().isdisjoint({"env", "volumeMounts"})
    assert webhook.metric("skipped_total", reason="pool_unknown") > before
    done = kube.kubectl("-n", TEAM, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(body))
    assert "Warning: kvpool: the pod starts without the pool: pool_unknown: The pod's Kubernetes" in done.stderr

    body["metadata"]["annotations"] = {"kvpool.io/require": "true"}
    with pytest.raises(client.ApiException) as denied:
        created(kube, body)
    assert denied.value.status == 403
    assert "the pod requires kvpool (kvpool.io/require) and can't join: pool_unknown: " in denied.value.body
    assert is_joined(created(kube, pod(annotations={"kvpool.io/require": "true"})))
    # a pool that comes with its pods is known for the first of them
    create_pool(kube, pool("nobody", TEAM))
    assert is_joined(created(kube, body))


def test_fifty_at_once(kube: Kube, webhook: Webhook) -> None:
    before = webhook.metric("reviews_total", outcome="injected")
    results = in_parallel(50, lambda number: created(kube, pod(f"x-{number}")))
    assert [is_joined(result) for result in results] == [True] * 50
    assert (webhook.metric("reviews_total", outcome="injected") - before) % 50 == 0
    assert webhook.metric("reviews_total", outcome="failed") == 0


def test_an_unreachable_api_server_leaves_the_last_known_pools(kube: Kube, webhook: Webhook) -> None:
    webhook.door.shut()
    try:
        faults = webhook.metric("api_faults")
        assert is_joined(created(kube, pod()))
        unknown = pod()
        unknown["metadata"]["labels"]["kvpool.io/pool"] = "other"
        assert skipped(created(kube, unknown)) == "pool_unread"
        assert webhook.metric("api_faults") > faults
        assert webhook.get("/readyz") == "ok\n"
        create_pool(kube, pool("other", TEAM))
        pools = webhook.metric("pools")
    finally:
        webhook.door.open()
    wait_for("the new pool is known", lambda: webhook.metric("pools") == pools + 1, 60)
    assert is_joined(created(kube, unknown))


def test_certificates_change_under_reviews_and_none_fails(kube: Kube, webhook: Webhook) -> None:
    """Three weeks in a moment: a new leaf, a second authority, its leaf. Each is valid now, as the API server has no
    other clock. The reviews must all be answered: a failed one would refuse its pod."""
    core = kube.core
    for name in (SETTINGS.authority_secret, SETTINGS.leaf_secret):
        core.delete_namespaced_secret(name, SETTINGS.k8s_namespace)
    now, day = datetime.now(UTC), timedelta(days=1)
    webhook.certify(now - 21 * day)
    webhook.certify(now - 2 * day)
    first = core.read_namespaced_secret(SETTINGS.leaf_secret, SETTINGS.k8s_namespace).data["tls.crt"]
    taken = webhook.metric("certificates_loaded")
    wait_joined(kube)
    with webhook.refusing():
        with Stream(kube) as stream:
            shown = webhook.shown()
            outcome = webhook.certify(now - day / 2)
            assert outcome.written == ("authorities", "bundle", "leaf")  # the leaf's Secret also holds the bundle
            assert core.read_namespaced_secret(SETTINGS.leaf_secret, SETTINGS.k8s_namespace).data["tls.crt"] == first
            stream.more(20)
            outcome = webhook.certify(now - day / 2 + SETTINGS.settle)
            assert outcome.written == ("leaf",)
            wait_for("the new leaf is shown", lambda: webhook.shown() != shown, 30)
            known = webhook.forget_connections()
            wait_for("a new connection", lambda: webhook.connections() - known, 30)
            stream.more(50)
            assert webhook.certify(now - day / 2 + SETTINGS.settle).written == ("bundle",)
            assert webhook.certify(now - day / 2 + SETTINGS.settle).written == ()
        assert stream.wrong == []
        assert webhook.metric("certificates_loaded") > taken
        assert webhook.metric("certificates_refused") == 0
        # the same with a leaf that no API server trusts
        shown = webhook.shown()
        made = plan.plan(now, {}, {}, SETTINGS)
        for name in ("tls.crt", "tls.key"):
            (webhook.files / name).write_bytes(made.leaf[name])
        wait_for("the foreign leaf is shown", lambda: webhook.shown() != shown, 30)
        with Stream(kube) as stream:
            webhook.forget_connections()
            wait_for("pods are refused", lambda: stream.wrong, 30)
        webhook.certify(now)
        wait_joined(kube)


def test_the_controller_keeps_the_certificates_with_the_rights_of_the_chart(
    kube: Kube, webhook: Webhook, tmp_path: Path
) -> None:
    core, home = kube.core, Kube(kube.provided, NAMESPACE)
    for name in (SETTINGS.authority_secret, SETTINGS.leaf_secret):
        core.delete_namespaced_secret(name, NAMESPACE)

    def bundle() -> str:
        found = webhook.api.read_mutating_webhook_configuration(CONFIGURATION).webhooks
        assert len({each.client_config.ca_bundle for each in found}) == 1
        return str(found[0].client_config.ca_bundle)

    before = bundle()
    controller = Controller(home, tmp_path, "--webhook", CONFIGURATION, everywhere=False)
    controller.start()
    try:
        ok = 'kvpool_controller_certificate_looks_total{result="ok"}'
        wait_for("the certificates are there", lambda: controller.metric(ok) == 1, 60)
        made = core.read_namespaced_secret(SETTINGS.leaf_secret, NAMESPACE)
        assert made.data["ca.crt"] == bundle() != before
        assert made.type == "kubernetes.io/tls"
        # signed for the Service; the tests' own address is asked for besides, with the same authority
        assert webhook.certify().written == ("leaf",)
    finally:
        assert controller.end() == 0, controller.log_file.read_text()
    wait_joined(kube)


def test_a_deployment_rolls_out_joined_pods(kube: Kube, webhook: Webhook) -> None:
    template = pod(automountServiceAccountToken=True)
    metadata = {"labels": {"app": "x", "kvpool.io/pool": "chat"}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "x"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "x"}},
            "template": {"metadata": metadata, "spec": template["spec"]},
        },
    }
    kube.kubectl("-n", TEAM, "apply", "-f", "-", stdin=json.dumps(deployment))

    def pods() -> list[dict[str, Any]]:
        answer = kube.core.list_namespaced_pod(TEAM, label_selector="app=x", _preload_content=False)
        items: list[dict[str, Any]] = json.loads(answer.data)["items"]
        return items if len(items) == 2 else []

    found = wait_for("two pods", pods, 30)
    kube.kubectl("-n", TEAM, "delete", "deployment", "x", "--wait=false")
    assert [is_joined(document) for document in found] == [True, True], webhook.log()
    # Each has a name and a volume for its token of its own, and they are of one template all the same. Another
    # argument makes another one.
    one, two = found
    assert one["metadata"]["name"] != two["metadata"]["name"] and token_volume(one) != token_volume(two)
    other = pod(automountServiceAccountToken=True)
    other["spec"]["containers"][0]["args"] = ["--max-model-len", "1024"]
    assert template_of(one) == template_of(two) != template_of(created(kube, other))


def token_volume(document: dict[str, Any]) -> str:
    (name,) = (v["name"] for v in document["spec"]["volumes"] if v["name"].startswith("kube-api-access-"))
    return str(name)


def template_of(document: dict[str, Any]) -> str:
    """The hash by which its agent knows its like."""
    agent = next(c for c in document["spec"]["initContainers"] if c["name"] == "kvpool-agent")
    (value,) = (v["value"] for v in agent["env"] if v["name"] == "KVPOOL_TEMPLATE")
    return str(value)
