"""What the chart makes of its values, rendered by helm itself; and what its rules let the controller do, on a real API
server without nodes."""

import os
import subprocess
from typing import Any

import yaml

from cluster.chart import CHART, RELEASE
from cluster.kube import Kube

HOME = "kvpool-chart-rules"


def rendered(kube: Kube, *values: str, version: str = "1.34.0") -> list[dict[str, Any]]:
    """The chart's objects."""
    helm = str(kube.provided.programs / "helm")
    command = [helm, "template", RELEASE, str(CHART), "-n", HOME, "--kube-version", version, *values]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(documents: list[dict[str, Any]], kind: str, name: str = "") -> list[dict[str, Any]]:
    return [d for d in documents if d["kind"] == kind and d["metadata"]["name"].endswith(name)]


def test_engines_beside_the_operator_are_looked_at_and_its_own_pods_are_not(kube: Kube) -> None:
    documents = rendered(kube)
    (registration,) = of_kind(documents, "MutatingWebhookConfiguration")
    for webhook in registration["webhooks"]:
        (excluded,) = webhook["namespaceSelector"]["matchExpressions"]
        assert (excluded["operator"], excluded["values"]) == ("NotIn", ["kube-system"])
        assert webhook["objectSelector"]["matchExpressions"] == [{"key": "kvpool.io/pool", "operator": "Exists"}]
    deployments = of_kind(documents, "Deployment")
    assert len(deployments) == 2
    for deployment in deployments:
        assert "kvpool.io/pool" not in deployment["spec"]["template"]["metadata"]["labels"]
