"""What the controller counts of itself, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

REGISTRY = CollectorRegistry()
PASSES = Counter("kvpool_controller_passes", "Passes over a pool, by result: ok, failed", ["result"], registry=REGISTRY)
WRITES = Counter(
    "kvpool_controller_writes", "Writes to the API server, by object: ConfigMap, Service, status, Event", ["object"],
    registry=REGISTRY,
)  # fmt: skip
ANSWERS = Counter(
    "kvpool_controller_agent_answers", "Agents asked for their status, by result: answered, silent", ["result"],
    registry=REGISTRY,
)  # fmt: skip
POOLS = Gauge("kvpool_controller_pools", "Pools that are looked after", registry=REGISTRY)


def serve(port: int) -> None:
    """/metrics on all addresses, in a thread of its own. Raises OSError where the port is taken."""
    start_http_server(port, registry=REGISTRY)
