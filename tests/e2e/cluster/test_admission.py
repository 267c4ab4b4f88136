"""The API server takes what `kvpool inject` prints, without a warning, and keeps the agent's container as
written."""

import json
from pathlib import Path

from cluster.kube import Kube
from kvpool_cli import manifests

GOLDEN = Path(__file__).resolve().parents[2] / "unit" / "golden" / "joined.yaml"


def test_the_joined_manifest_is_taken(kube: Kube) -> None:
    # The autoscaler stands in the golden file as a bare stub that the injector has to pass on.
    printed = manifests.load(GOLDEN.read_text())
    documents = [d for d in printed if d.content["kind"] != "HorizontalPodAutoscaler"]
    text = manifests.join([document.text for document in documents])
    kube.kubectl("create", "namespace", "team-a")
    done = kube.kubectl("-n", "team-a", "apply", "--dry-run=server", "-o", "json", "-f", "-", stdin=text)
    assert done.stderr == ""
    taken = {(item["kind"], item["metadata"]["name"]): item for item in json.loads(done.stdout)["items"]}
    assert set(taken) == {
        ("Service", "chat-kvpool"),
        ("Service", "chat"),
        ("Deployment", "chat"),
    }
    written = next(d.content for d in documents if d.content["kind"] == "Deployment")["spec"]["template"]["spec"]
    agent = taken["Deployment", "chat"]["spec"]["template"]["spec"]["initContainers"][-1]
    for field in (
        "name",
        "image",
        "command",
        "restartPolicy",
        "ports",
        "resources",
        "securityContext",
        "volumeMounts",
    ):
        assert agent[field] == written["initContainers"][-1][field]
