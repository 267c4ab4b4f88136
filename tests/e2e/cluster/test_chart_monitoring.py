"""What the chart makes for the Prometheus operator: an API server takes it, by definitions that know no other field."""

import json
import subprocess
from typing import Any

import yaml

from cluster.chart import CHART, of_kind, rendered
from cluster.kube import Kube, wait_for
from kvpool_operator.desired.pool import read_pool
from kvpool_operator.inject.containers import agent_container
from kvpool_operator.inject.resources import Bounds

MONITORING = "monitoring.coreos.com"
MONITORED = (
    "--set=podMonitor.enabled=true", "--set=prometheusRule.enabled=true",
    "--set=prometheusRule.runbookUrl=https://docs.example/kvpool", "--set=prometheusRule.labels.team=a",
)  # fmt: skip
TEXT = {"type": "string"}
TEXTS = {"type": "object", "additionalProperties": TEXT}


def listed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "object", "properties": properties}}


def monitored(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A definition of the Prometheus operator, as far as the chart uses it: whatever else it writes is refused."""
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": name, "listKind": f"{name}List", "plural": f"{name.lower()}s", "singular": name.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{MONITORING}"},
        "spec": {"group": MONITORING, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def apply(kube: Kube, documents: str) -> subprocess.CompletedProcess[str]:
    """Nothing is changed."""
    strict = ("apply", "--dry-run=server", "--validate=strict", "-o", "name", "-f", "-")
    return kube.kubectl(*strict, stdin=documents, check=False)


def taken_by(kube: Kube, documents: str) -> list[str]:
    """Names of the documents, once each is of a kind that the API server knows."""
    done = apply(kube, documents)
    if done.returncode:
        raise ValueError(done.stderr)
    return done.stdout.split()


def test_monitors_and_alerts_are_taken_by_the_api_server(kube: Kube) -> None:
    assert [d for d in rendered(kube) if d["apiVersion"].startswith(MONITORING)] == []
    alert = dict.fromkeys(("alert", "expr", "for"), TEXT) | dict.fromkeys(("labels", "annotations"), TEXTS)
    relabelings = {"sourceLabels": {"type": "array", "items": TEXT}, "targetLabel": TEXT}
    endpoint = {"port": TEXT, "relabelings": listed(relabelings)}
    selected = listed({"key": TEXT, "operator": TEXT})
    definitions = [
        monitored("PrometheusRule", {"groups": listed({"name": TEXT, "rules": listed(alert)})}),
        monitored(
            "PodMonitor",
            {
                "selector": {"type": "object", "properties": {"matchLabels": TEXTS, "matchExpressions": selected}},
                "namespaceSelector": {
                    "type": "object",
                    "properties": {"any": {"type": "boolean"}, "matchNames": {"type": "array", "items": TEXT}},
                },
                "podMetricsEndpoints": listed(endpoint),
            },
        ),
    ]
    text = yaml.safe_dump_all(definitions)
    kube.kubectl("apply", "-f", "-", stdin=text)
    try:
        for place in ((), ("--set=controller.namespaces={team-a}",)):
            made = [d for d in rendered(kube, *MONITORED, *place) if d["apiVersion"].startswith(MONITORING)]
            for each in made:
                each["metadata"]["namespace"] = "default"
            documents = yaml.safe_dump_all(made)
            taken = wait_for("both definitions", lambda documents=documents: taken_by(kube, documents), 60)
            assert sorted(taken) == sorted(
                [
                    f"podmonitor.{MONITORING}/kvpool",
                    f"podmonitor.{MONITORING}/kvpool-agents",
                    f"prometheusrule.{MONITORING}/kvpool",
                ]
            )
        misspelt = json.dumps({**made[0], "spec": {**made[0]["spec"], "podMetricEndpoints": []}})
        assert "unknown field" in apply(kube, misspelt).stderr
        (rule,) = of_kind(made, "PrometheusRule")
        alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
        assert {alert["annotations"]["runbook_url"] for alert in alerts} == {"https://docs.example/kvpool#alerts"}
        assert len(alerts) == len({alert["alert"] for alert in alerts}) == 16
        (agents,) = of_kind(made, "PodMonitor", "agents")
        assert agents["spec"]["namespaceSelector"] == {"matchNames": ["team-a"]}
        assert agents["spec"]["podMetricsEndpoints"][0]["port"] in ports_of_the_agent()
    finally:
        kube.kubectl("delete", "-f", "-", "--wait=false", stdin=text)


def test_the_dashboard_is_a_config_map_that_grafana_finds(kube: Kube) -> None:
    assert of_kind(rendered(kube), "ConfigMap", "-dashboard") == []
    (made,) = of_kind(rendered(kube, "--set=dashboard.enabled=true", "--set=dashboard.labels.team=a"), "ConfigMap")
    assert (made["metadata"]["labels"]["grafana_dashboard"], made["metadata"]["labels"]["team"]) == ("1", "a")
    assert json.loads(made["data"]["kvpool.json"]) == json.loads((CHART / "dashboard.json").read_text())


def ports_of_the_agent() -> list[str]:
    pool = read_pool({"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": {"name": "chat"}})
    agent = agent_container(pool, "i", "r", (), Bounds(), as_root=False)
    return [port["name"] for port in agent["ports"]]
