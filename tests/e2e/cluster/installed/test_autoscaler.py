"""Kubernetes' own autoscaler beside the agents: it can count their pods, and asks for no more of them for what a
newcomer uses before it is ready."""

import json
import time

import yaml

from cluster.kube import wait_for
from cluster.observers import EndpointWatch, Traffic
from cluster.standins import NAME, StandIns, ask, sum_blocks

BLOCKS = 24
MOST = 4
SHARE_OF_LOAD = 1.5  # of what is asked for: one replica more is enough
UNREACHABLE = 100_000  # percent of what the containers request


def autoscaler(percent: int) -> str:
    """By CPU, as its user writes it. Nothing of it knows kvpool."""
    metric = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}
    return yaml.safe_dump(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": NAME},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME},
                "minReplicas": 1,
                "maxReplicas": MOST,
                "metrics": [{"type": "Resource", "resource": metric}],
            },
        }
    )


def status(standins: StandIns) -> dict[str, object]:
    found: dict[str, object] = json.loads(standins.kubectl("get", "hpa", NAME, "-o", "json").stdout)["status"]
    return found


def utilisation(standins: StandIns) -> int:
    """Percent of the requests, of pods whose figures are younger than now."""
    (metric,) = status(standins)["currentMetrics"]  # type: ignore[misc]
    return int(metric["resource"]["current"]["averageUtilization"])


def measured_at(standins: StandIns) -> set[str]:
    path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{standins.namespace}/pods"
    return {item["timestamp"] for item in json.loads(standins.kubectl("get", "--raw", path).stdout)["items"]}


def test_the_autoscaler_asks_for_no_more_while_a_newcomer_warms(standins: StandIns) -> None:
    # a block a second, which is longer than the figures take to tell what the newcomer's start has cost
    (first,) = standins.create(1, pool_spec={"prewarm": {"maxBytesPerSecond": "4Ki"}})
    tokens = standins.heat("hot", BLOCKS)
    standins.kubectl("apply", "-f", "-", stdin=autoscaler(UNREACHABLE))
    with (
        EndpointWatch(standins, NAME) as endpoints,
        Traffic(standins.cluster_ip(NAME), ask=lambda host: ask(host, tokens, port=80), every=0.05) as traffic,
    ):
        wait_for("load", lambda: traffic.served > 100, 60)
        figures: list[set[str]] = []

        def under_load() -> bool:
            """Two whole windows have passed since."""
            if (now := measured_at(standins)) and now not in figures:
                figures.append(now)
            return len(figures) > 2

        wait_for("figures of the load", under_load, 90, every=1)
        used = wait_for("the autoscaler's figure", lambda: utilisation(standins), 30)
        assert status(standins)["desiredReplicas"] == 1
        standins.kubectl("apply", "-f", "-", stdin=autoscaler(int(used / SHARE_OF_LOAD)))
        second = wait_for(
            "a second replica",
            lambda: next((m for m in standins.members() if m.pod.name != first.pod.name and m.pod.address), None),
            60,
        )
        asked, deadline = set(), time.monotonic() + 90
        while not endpoints.was_ready(second.pod.name):
            asked.add(status(standins)["desiredReplicas"])
            assert time.monotonic() < deadline, f"{second.pod.name} is not ready; asked for: {asked}"
            time.sleep(1)
        conditions = {c["type"]: c["status"] for c in status(standins)["conditions"]}  # type: ignore[attr-defined]
        wait_for("it serves", lambda: sum_blocks(second) > 0, 60)
    assert asked == {2}
    assert conditions["ScalingActive"] == "True"
    assert traffic.failures == []
    warm = second.status()
    assert (warm.state, warm.warm.loaded_blocks) == ("Ready(warm)", BLOCKS)
    (ready,) = [event for event in warm.events if event.word == "ready"]
    assert min(at for at, is_ready in endpoints.history(second.pod.name) if is_ready) >= ready.at
