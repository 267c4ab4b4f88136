"""What lies in Secrets of the cluster, and all that is shown to those who may not read them; and at which ports a pod
listens."""

import base64
import http.client
from collections.abc import Iterator

from kubernetes import client

from cluster.chart import CONTROLLER, NAMESPACE, WEBHOOK, Chart
from cluster.kube import Kube
from cluster.standins import StandIns
from kvpool_cli import forward
from kvpool_contract.names import WORKER_PORT

PAGE_PORT = 8082
METRICS = {CONTROLLER: 8081, WEBHOOK: 8080}
OBJECTS = "pods,events,configmaps,services,endpointslices,replicasets,deployments,leases,kvcachepools"
# as /proc/net has them; a datagram socket that is connected, as a resolver's is, takes nothing but its answers
LISTENS, TAKES_ANY = "0A", "07"
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


def private(kube: Kube) -> dict[str, bytes]:
    """Each line of each key in the namespace's Secrets, certificates and helm's own left out; and what it says in
    base64, which is both of a key file and of PEM."""
    found = {}
    for secret in kube.core.list_namespaced_secret(kube.namespace).items:
        if secret.type.startswith("helm.sh/"):
            continue
        for entry, encoded in (secret.data or {}).items():
            for n, line in enumerate(_key_lines(base64.b64decode(encoded))):
                found[f"{secret.metadata.name}/{entry} {n}"] = line
                found[f"{secret.metadata.name}/{entry} {n}, decoded"] = base64.b64decode(line)
    return found


def _key_lines(text: bytes) -> list[bytes]:
    if b"-----BEGIN CERTIFICATE" in text:
        return []
    # a name, such as the cluster's, has a hyphen
    return [line for line in text.split() if len(line) >= 32 and b"-" not in line]


def shown(chart: Chart, home: StandIns) -> dict[str, bytes]:
    """By where it is: logs, metrics, statuses, pages, and objects that are no Secrets, of the operator's namespace and
    of a pool's."""
    found = {}
    for kube in (chart, home):
        for pod, container in _containers(kube):
            log = kube.core.read_namespaced_pod_log
            try:
                text = log(pod, kube.namespace, container=container, _preload_content=False).data
            except client.ApiException as error:
                if error.status != http.client.NOT_FOUND:
                    raise
                continue  # one that was ending is gone by now, and its log with it
            found[f"log {kube.namespace}/{pod}/{container}"] = bytes(text)
        found[f"objects {kube.namespace}"] = kube.kubectl("get", OBJECTS, "-o", "json").stdout.encode()
    registered = "mutatingwebhookconfigurations,validatingadmissionpolicies,customresourcedefinitions"
    found["definitions"] = chart.kubectl("get", registered, "-o", "json").stdout.encode()
    settings = chart.core.api_client.configuration
    for name, port in METRICS.items():
        for pod in operator_pods(chart, name):
            found[f"metrics {pod}"] = _told(
                forward.get(settings, NAMESPACE, pod, "/metrics", 10, port=port), b"kvpool_"
            )
    (controller,) = operator_pods(chart, CONTROLLER)
    found["page"] = _told(forward.get(settings, NAMESPACE, controller, "/", 10, port=PAGE_PORT), b"Pools")
    for member in home.members():
        found[f"status {member.pod.name}"] = forward.get(settings, home.namespace, member.pod.name, "/status", 10)
        found[f"metrics {member.pod.name}"] = _told(member.get(WORKER_PORT, "/metrics"), b"kvpool_")
    return found


def operator_pods(chart: Chart, name: str) -> list[str]:
    part = name.removeprefix("kvpool-")
    return [pod.name for pod in chart.pods(f"app.kubernetes.io/component={part}")]


def _containers(kube: Kube) -> Iterator[tuple[str, str]]:
    """Those that have a log."""
    for pod in kube.core.list_namespaced_pod(kube.namespace).items:
        for status in (*(pod.status.init_container_statuses or []), *(pod.status.container_statuses or [])):
            if status.container_id:
                yield pod.metadata.name, status.name


def _told(text: bytes | None, of: bytes) -> bytes:
    """What was read, which is what it should be."""
    assert text and of in text, text
    return text


def listening(kube: Kube, pod: str, container: str) -> dict[str, set[int]]:
    """Ports at which the pod takes connections, or datagrams: those at any address of it, and those at its loopback
    address alone."""
    ports: dict[str, set[int]] = {"open": set(), "loopback": set()}
    tables = [f"/proc/net/{kind}" for kind in ("tcp", "tcp6", "udp", "udp6")]
    rows = kube.kubectl("exec", pod, "-c", container, "--", "grep", "-H", "[0-9]: ", *tables).stdout
    for row in rows.splitlines():
        table, _, local, _, state, *_ = row.split()
        address, _, port = local.partition(":")
        if state == (TAKES_ANY if table.startswith("/proc/net/udp") else LISTENS):
            ports["loopback" if address in LOOPBACK else "open"].add(int(port, 16))
    return ports
