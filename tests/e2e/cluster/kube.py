"""What the tests ask of the cluster: apply, scale, pods, logs. Waiting is always for a condition, with a
deadline."""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from kubernetes import client, config

from cluster.provider import REPOSITORY, Provided

AGENT = "kvpool-agent"
POOLS = ("kvpool.io", "v1alpha1", "kvcachepools")

Found = TypeVar("Found")


def wait_for(what: str, look: Callable[[], Found | None], seconds: float, every: float = 0.2) -> Found:
    """The first truthy answer of `look`; fails after `seconds` with the last answer or error."""
    deadline, last = time.monotonic() + seconds, None
    while time.monotonic() < deadline:
        try:
            last = answer = look()
            if answer:
                return answer
        except (OSError, ValueError, client.ApiException) as error:
            last = error  # type: ignore[assignment]
        time.sleep(every)
    raise AssertionError(f"{what}: not within {seconds} s; last: {last!r}")


@dataclass(frozen=True)
class Pod:
    name: str
    uid: str
    address: str
    ready: bool
    restarts: int


class Kube:
    """One namespace of a cluster."""

    def __init__(self, provided: Provided, namespace: str) -> None:
        self.provided = provided
        self.namespace = namespace
        connect: Any = config.new_client_from_config  # the client's types hold None nearly everywhere
        api_client = connect(config_file=str(provided.kubeconfig))
        self.core: Any = client.CoreV1Api(api_client)
        self.discovery: Any = client.DiscoveryV1Api(api_client)
        self.custom: Any = client.CustomObjectsApi(api_client)

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [self.provided.kubectl, "--kubeconfig", str(self.provided.kubeconfig), "-n", self.namespace]
        done = subprocess.run([*command, *arguments], input=stdin, capture_output=True, text=True, timeout=120)
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done

    def install_crd(self) -> None:
        """The pool's definition, served: which is a moment after it is established."""
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(REPOSITORY / "crds"))
        self.kubectl("wait", "--for=condition=Established", "crd/kvcachepools.kvpool.io", "--timeout=30s")
        wait_for("pools are served", lambda: self.custom.list_namespaced_custom_object(*self._pools), 30)

    @property
    def _pools(self) -> tuple[str, str, str, str]:
        return (*POOLS[:2], self.namespace, POOLS[2])

    def create_pool(self, document: dict[str, Any], **options: Any) -> dict[str, Any]:
        """The pool as the API server takes it; raises ApiException. Unknown fields are refused, as kubectl has it."""
        created: dict[str, Any] = self.custom.create_namespaced_custom_object(
            *self._pools, document, field_validation="Strict", **options
        )
        return created

    def pods(self, selector: str) -> list[Pod]:
        """Living pods, the oldest first."""
        listed = self.core.list_namespaced_pod(self.namespace, label_selector=selector).items
        living = [pod for pod in listed if pod.metadata.deletion_timestamp is None]
        living.sort(key=lambda pod: pod.metadata.creation_timestamp)
        return [Pod(p.metadata.name, p.metadata.uid, p.status.pod_ip or "", _is_ready(p), _restarts(p)) for p in living]

    def set_agent_image(self, pod: str, image: str) -> None:
        """As a person does it: the kubelet then replaces this container and no other."""
        patch = {"spec": {"initContainers": [{"name": AGENT, "image": image}]}}
        self.kubectl("patch", "pod", pod, "-p", json.dumps(patch))

    def agent_restarts(self, pod: str) -> int:
        found = self.core.read_namespaced_pod(pod, self.namespace).status.init_container_statuses or []
        return sum(c.restart_count for c in found if c.name == AGENT)

    def deployment(self, name: str) -> Any:
        """As the API server writes it."""
        apps: Any = client.AppsV1Api(self.core.api_client)
        return json.loads(apps.read_namespaced_deployment(name, self.namespace, _preload_content=False).data)

    def dry_pod(self, pod: dict[str, Any]) -> Any:
        """What would come of this pod."""
        made = self.core.create_namespaced_pod(self.namespace, pod, dry_run="All", _preload_content=False)
        return json.loads(made.data)

    def scale(self, deployment: str, replicas: int) -> None:
        self.kubectl("scale", "deployment", deployment, f"--replicas={replicas}")

    def cluster_ip(self, service: str) -> str:
        address = self.core.read_namespaced_service(service, self.namespace).spec.cluster_ip
        assert address
        return str(address)

    def report(self, selector: str) -> str:
        """States and last log lines of the pods, for a failed test."""
        parts = [self.kubectl("get", "pods,endpointslices", "-o", "wide", check=False).stdout]
        for pod in self.pods(selector):
            parts.append(self.kubectl("describe", "pod", pod.name, check=False).stdout[-2500:])
            for container in ("kvpool-client", "kvpool-agent", "engine"):
                previous = ["--previous"] if pod.restarts and container == "engine" else []
                log = self.kubectl("logs", pod.name, "-c", container, "--tail=150", *previous, check=False)
                parts.append(f"--- {pod.name} {container}\n{log.stdout}{log.stderr}")
        return "\n".join(parts)


def _is_ready(pod: Any) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or [])


def _restarts(pod: Any) -> int:
    return sum(c.restart_count for c in pod.status.container_statuses or [])
