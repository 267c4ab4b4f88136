"""The chart in the cluster, installed and removed by helm itself."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from cluster import readme
from cluster.kube import Kube, wait_for
from cluster.provider import REPOSITORY, Provided

RELEASE, NAMESPACE = "kvpool", "kvpool-system"
CHART = REPOSITORY / "helm" / "kvpool"
CONTROLLER, WEBHOOK = "kvpool-controller", "kvpool-webhook"
REGISTRATION = "injector.kvpool.io"
REGISTRY = "--set=global.imageRegistry=registry.example"


def render(
    kube: Kube, *values: str, version: str = "1.34.0", namespace: str = NAMESPACE
) -> subprocess.CompletedProcess[str]:
    """What helm makes of the chart, or says of it."""
    helm = str(kube.provided.programs / "helm")
    command = [helm, "template", RELEASE, str(CHART), "-n", namespace, "--kube-version", version, *values]
    return subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=60)


def rendered(kube: Kube, *values: str, version: str = "1.34.0", namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    """The chart's objects."""
    done = render(kube, *values, version=version, namespace=namespace)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(documents: list[dict[str, Any]], kind: str, name: str = "") -> list[dict[str, Any]]:
    return [d for d in documents if d["kind"] == kind and d["metadata"]["name"].endswith(name)]


class Chart(Kube):
    """The operator's namespace, and helm."""

    def __init__(self, provided: Provided) -> None:
        super().__init__(provided, NAMESPACE)

    def shell(self, command: str, folder: Path) -> str:
        """Output of a command as a reader of README runs it, which must succeed."""
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=self._environment(), capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def install(self, folder: Path) -> None:
        """By README's own command, in a folder as its reader has it."""
        (install,) = [line for line in readme.commands("Install") if line.startswith("helm install ")]
        self.shell(install, folder)

    def helm(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [str(self.provided.programs / "helm"), *arguments]
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, timeout=300)
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done

    def upgrade(self, *arguments: str) -> None:
        self.helm("upgrade", RELEASE, str(CHART), "-n", NAMESPACE, "--wait", REGISTRY, *arguments)

    def uninstall(self) -> None:
        self.helm("uninstall", RELEASE, "-n", NAMESPACE, "--wait")

    def scale_to(self, name: str, replicas: int) -> None:
        """Returns when there are so many, ready, and no other pods of it."""
        self.scale(name, replicas)
        part = name.removeprefix("kvpool-")

        def look() -> bool:
            pods = self.core.list_namespaced_pod(NAMESPACE, label_selector=f"app.kubernetes.io/component={part}").items
            ready = self.deployment(name)["status"].get("readyReplicas", 0)
            return len(pods) == replicas == ready

        wait_for(f"{replicas} of {name}", look, 120)

    def registration(self) -> dict[str, Any]:
        document = json.loads(self.kubectl("get", "mutatingwebhookconfiguration", REGISTRATION, "-o", "json").stdout)
        found: dict[str, Any] = document
        return found

    def bundles(self) -> set[str]:
        """What API servers trust, of both webhooks."""
        return {each["clientConfig"].get("caBundle", "") for each in self.registration()["webhooks"]}

    def clear(self) -> None:
        """Nothing of kvpool is left in the cluster, the definition neither. By force, since a node may be dead."""
        self.helm("uninstall", RELEASE, "-n", NAMESPACE, "--ignore-not-found")
        self.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")
        self.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")
        self.kubectl("delete", "crd", "kvcachepools.kvpool.io", "--ignore-not-found")

    def _environment(self) -> dict[str, str]:
        path = f"{self.provided.programs}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "KUBECONFIG": str(self.provided.kubeconfig)}
