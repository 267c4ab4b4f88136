"""The webhook's process beside a real API server, registered by URL, and what stands around it: its account, its
certificates as the kubelet would bring them, and a way to the API server that can be shut."""

import base64
import contextlib
import copy
import http.server
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kubernetes import client
from prometheus_client.parser import text_string_to_metric_families

from cluster.controllers import ACCOUNT, Door
from cluster.kube import Kube, wait_for
from cluster.provider import REPOSITORY
from kvpool_operator.certificates import apply
from kvpool_operator.certificates.peers import PeerPlan, PeerSettings
from kvpool_operator.certificates.plan import Settings

NAMESPACE = "kvpool-webhook"
CONFIGURATION = "injector.kvpool.io"  # runs before the meshes' by its name
MARK = "kvpool-test"
ENFORCE = "pod-security.kubernetes.io/enforce"
AGENT_IMAGE = "example.test/agent:1"
SETTINGS = Settings(
    NAMESPACE,
    "kvpool-webhook",
    CONFIGURATION,
    extra_names=("127.0.0.1",),
    authority_life=timedelta(days=30),
    leaf_life=timedelta(days=10),
)


def pool(name: str, namespace: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kvpool.io/v1alpha1",
        "kind": "KVCachePool",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def registration(url: str, name: str = CONFIGURATION) -> dict[str, Any]:
    """As a chart registers it, but by URL, and for the namespaces of these tests alone."""
    webhook = {
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "reinvocationPolicy": "IfNeeded",
        "timeoutSeconds": 10,
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "objectSelector": {"matchExpressions": [{"key": "kvpool.io/pool", "operator": "Exists"}]},
    }
    required = (
        "has(object.metadata.annotations) && 'kvpool.io/require' in object.metadata.annotations"
        " && object.metadata.annotations['kvpool.io/require'] == 'true'"
    )
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                **webhook,
                "name": f"{prefix}{each}",
                "clientConfig": {"url": f"{url}{path}"},
                "namespaceSelector": {
                    "matchLabels": {MARK: "webhook"},
                    "matchExpressions": [{"key": ENFORCE, "operator": operator, "values": ["privileged"]}],
                },
                "failurePolicy": policy,
                "matchConditions": [{"name": "required", "expression": expression}],
            }
            for prefix, path, operator in (("", "", "NotIn"), ("privileged.", "/privileged", "In"))
            for each, policy, expression in (
                ("inject.kvpool.io", "Ignore", f"!({required})"),
                ("require.kvpool.io", "Fail", required),
            )
        ],
    }


class Webhook:
    """The process. `files`: its certificates; `door`: its way to the API server."""

    def __init__(self, kube: Kube, folder: Path) -> None:
        self.kube, self.folder = kube, folder
        self.files, self.peer_files = folder / "certificates", folder / "peers"
        self.peers = PeerSettings(NAMESPACE)
        configuration = kube.core.api_client.configuration
        server = urlsplit(configuration.host)
        assert server.hostname and server.port
        self.door = Door(server.hostname, server.port)
        (folder / "ca.crt").write_bytes(Path(configuration.ssl_ca_cert).read_bytes())
        (folder / "token").write_text(kube.kubectl("-n", NAMESPACE, "create", "token", "kvpool-webhook").stdout)
        self.api: Any = client.AdmissionregistrationV1Api(kube.core.api_client)
        self.port, self.status_port = (_free_port() for _ in range(2))
        self.url = f"https://127.0.0.1:{self.port}/inject"
        self._process: subprocess.Popen[bytes] | None = None
        self._blank_lines = 0

    def start(self) -> None:
        command = [
            *(sys.executable, "-m", "kvpool_operator.webhook", "--certificates", str(self.files)),
            *("--peers", str(self.peer_files)),
            *("--agent-image", AGENT_IMAGE, "--port", str(self.port), "--status-port", str(self.status_port)),
            *("--api-server", f"https://127.0.0.1:{self.door.port}", "--api-token-file", str(self.folder / "token")),
            *("--api-ca-file", str(self.folder / "ca.crt"), "--drain-seconds", "0"),
        ]
        paths = f"{REPOSITORY / 'agent'}:{REPOSITORY / 'operator'}"
        log = (self.folder / "webhook.log").open("ab")
        self._process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, stdout=log, stderr=log)

    def wait_ready(self) -> None:
        wait_for("the webhook is ready", lambda: self.get("/readyz") == "ok\n", 60)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            assert self._process.wait(60) == 0, self.log()
            self._process = None

    def signal(self, number: signal.Signals) -> None:
        assert self._process
        self._process.send_signal(number)

    def patch_registration(self, field: str, value: object) -> None:
        """Of the webhook for pods that don't require the pool, or of both where the field is of both; in namespaces
        that are not privileged."""
        patch = [{"op": "replace", "path": f"/webhooks/{n}/{field}", "value": value} for n in (0, 1)]
        self.api.patch_mutating_webhook_configuration(CONFIGURATION, patch[: 1 if field == "failurePolicy" else 2])

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """While a review that nobody answers refuses its pod."""
        self.patch_registration("failurePolicy", "Fail")
        try:
            yield
        finally:
            self.patch_registration("failurePolicy", "Ignore")

    def log(self) -> str:
        return (self.folder / "webhook.log").read_text()

    def get(self, path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.status_port, timeout=20)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def metric(self, name: str, **labels: str) -> int:
        return int(sum(one.value for one in self._samples(name) if labels.items() <= one.labels.items()))

    def metric_by(self, name: str, label: str) -> dict[str, int]:
        """The metric for each value of a label, of one moment."""
        return {one.labels[label]: int(one.value) for one in self._samples(name)}

    def _samples(self, name: str) -> list[Any]:
        families = text_string_to_metric_families(self.get("/metrics"))
        return [one for family in families for one in family.samples if one.name == f"kvpool_webhook_{name}"]

    def certify(self, now: datetime | None = None) -> apply.Outcome:
        """What the controller does, and then the kubelet: the Secret's files are swapped at once."""
        outcome = apply.reconcile(self.kube.core.api_client, SETTINGS, now or datetime.now(UTC))
        self._bring(SETTINGS.leaf_secret, self.files)
        return outcome

    def authorise(self, now: datetime | None = None) -> PeerPlan:
        """Likewise for the authority of the members; all of them trust what they are given at once."""
        api = self.kube.core.api_client
        cluster, at = apply.cluster_name(api), now or datetime.now(UTC)
        plan, _ = apply.reconcile_peers(api, self.peers, cluster, lambda _bundle: True, at)
        self._bring(self.peers.secret, self.peer_files)
        return plan

    def _bring(self, name: str, files: Path) -> None:
        secret = self.kube.core.read_namespaced_secret(name, NAMESPACE)
        generation = self.folder / f"generation-{time.monotonic_ns()}"
        generation.mkdir()
        for entry, text in secret.data.items():
            (generation / entry).write_bytes(base64.b64decode(text))
        link = self.folder / "next"
        link.symlink_to(generation)
        link.replace(files)

    def forget_connections(self) -> set[str]:
        """Makes the API server leave its connections to the webhook, of which it keeps some for each bundle: blank
        lines at its end make it another one. Returns those that there were."""
        before = self.connections()
        self._blank_lines += 1
        found = self.api.read_mutating_webhook_configuration(CONFIGURATION).webhooks[0].client_config.ca_bundle
        bundle = base64.b64encode(base64.b64decode(found) + b"\n" * self._blank_lines).decode()
        patch = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]
        self.api.patch_mutating_webhook_configuration(CONFIGURATION, patch)
        return before

    def connections(self) -> set[str]:
        """The other ends of the open connections."""
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return {line[2] for line in lines if line[1].endswith(f":{self.port:04X}") and line[3] == "01"}

    def shown(self) -> str:
        """The certificate that new connections get."""
        return ssl.get_server_certificate(("127.0.0.1", self.port))


@contextlib.contextmanager
def running(kube: Kube, folder: Path) -> Iterator[Webhook]:
    """The webhook, registered and ready; nothing of it is left in the cluster afterwards."""
    wait_for("former namespaces are gone", lambda: not kube.core.list_namespace(label_selector=MARK).items, 60)
    kube.kubectl(
        "-n", NAMESPACE, "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": _around()})
    )
    kube.install_crd()
    webhook = Webhook(kube, folder)
    webhook.api.create_mutating_webhook_configuration(registration(webhook.url))
    try:
        webhook.certify()
        webhook.authorise()
        webhook.start()
        webhook.wait_ready()
        yield webhook
    finally:
        webhook.api.delete_mutating_webhook_configuration(CONFIGURATION)
        with contextlib.suppress(AssertionError):
            webhook.stop()
        webhook.door.shut()
        kube.kubectl("delete", "namespaces", "-l", MARK, "--wait=false")
        kube.kubectl("delete", "clusterroles,clusterrolebindings", "-l", MARK)


def namespace(kube: Kube, name: str, **labels: str) -> str:
    """A namespace whose pods the webhook sees, with the account that pods need."""
    body = {"metadata": {"name": name, "labels": {MARK: "webhook", **labels}}}
    kube.core.create_namespace(body)
    return _with_account(kube, name)


def unseen_namespace(kube: Kube, name: str, **labels: str) -> str:
    kube.core.create_namespace({"metadata": {"name": name, "labels": {MARK: "elsewhere", **labels}}})
    return _with_account(kube, name)


def _with_account(kube: Kube, name: str) -> str:
    wait_for("the default account", lambda: kube.core.read_namespaced_service_account("default", name), 30)
    return name


def _around() -> list[dict[str, Any]]:
    """The accounts of webhook and controller, with the rights that certificates and pools need."""
    group = "rbac.authorization.k8s.io"

    def allowed(account: str, *rules: dict[str, Any], kind: str = "ClusterRole") -> list[dict[str, Any]]:
        name = {"name": f"{account}-of-tests", "namespace": NAMESPACE, "labels": {MARK: "elsewhere"}}
        subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
        role = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": name, "rules": list(rules)}
        reference = {"apiGroup": group, "kind": kind, "name": name["name"]}
        binding = {"apiVersion": f"{group}/v1", "kind": f"{kind}Binding", "metadata": name}
        return [role, {**binding, "roleRef": reference, "subjects": [subject]}]

    def rule(api: str, resource: str, *verbs: str, **names: Any) -> dict[str, Any]:
        return {"apiGroups": [api], "resources": [resource], "verbs": list(verbs), **names}

    secrets = [SETTINGS.authority_secret, SETTINGS.leaf_secret, PeerSettings(NAMESPACE).secret]
    configurations = [CONFIGURATION]
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": {MARK: "elsewhere"}}},
        *(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}}
            for name in ("kvpool-webhook", ACCOUNT)
        ),
        *allowed(
            "kvpool-webhook",
            rule("kvpool.io", "kvcachepools", "get", "list", "watch"),
            rule("authentication.k8s.io", "tokenreviews", "create"),
            rule("", "pods", "get"),
        ),
        *allowed(
            ACCOUNT,
            rule("", "secrets", "create"),
            rule("", "secrets", "get", "update", resourceNames=secrets),
            kind="Role",
        ),
        *allowed(
            ACCOUNT,
            rule(
                "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "get", "patch",
                resourceNames=configurations,
            ),
            rule("", "namespaces", "get", resourceNames=["kube-system"]),
        ),
    ]  # fmt: skip


class Mesh:
    """A webhook of somebody else's that puts a proxy and a variable into every pod that has none, and keeps the pods
    as it saw them."""

    def __init__(self, files: Path) -> None:
        self.seen: list[dict[str, Any]] = []
        mesh = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
                mesh.seen.append(copy.deepcopy(request["object"]))
                answer = json.dumps(_mesh_answer(request)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(files / "tls.crt", files / "tls.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def _mesh_answer(request: dict[str, Any]) -> dict[str, Any]:
    containers = request["object"]["spec"]["containers"]
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    if all(container["name"] != "istio-proxy" for container in containers):
        proxy = {"name": "istio-proxy", "image": "istio:1"}
        theirs = {"name": "THEIRS", "value": "1"}
        engine = next(n for n, container in enumerate(containers) if container["name"] == "engine")
        environment = [*(containers[engine].get("env") or []), theirs]
        patch = [
            {"op": "add", "path": f"/spec/containers/{engine}/env", "value": environment},
            {"op": "add", "path": "/spec/containers/0", "value": proxy},
        ]
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def in_parallel(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Results of `count` calls at the same time, errors in place of results."""
    results: list[Any] = [None] * count
    start = threading.Barrier(count)

    def one(number: int) -> None:
        start.wait()
        try:
            results[number] = work(number)
        except Exception as error:  # noqa: BLE001 - told apart by the test
            results[number] = error

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
