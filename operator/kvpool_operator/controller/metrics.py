"""What the controller counts of itself, for Prometheus."""

import socket

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

REGISTRY = CollectorRegistry()
PASSES = Counter("kvpool_controller_passes", "Passes over a pool, by result: ok, failed", ["result"], registry=REGISTRY)
WRITES = Counter(
    "kvpool_controller_writes", "Writes to the API server, by object: ConfigMap, Service, Secret, status, Event, Pod",
    ["object"], registry=REGISTRY,
)  # fmt: skip
ANSWERS = Counter(
    "kvpool_controller_agent_answers", "Agents asked for their status, by result: answered, silent", ["result"],
    registry=REGISTRY,
)  # fmt: skip
POOLS = Gauge("kvpool_controller_pools", "Pools that are looked after", registry=REGISTRY)
CERTIFICATES = Counter(
    "kvpool_controller_certificate_looks", "Looks after the webhook's certificates, by result: ok, failed", ["result"],
    registry=REGISTRY,
)  # fmt: skip
LEAF_EXPIRES = Gauge(
    "kvpool_controller_webhook_certificate_expires_seconds", "When the webhook's certificate expires, since 1970",
    registry=REGISTRY,
)  # fmt: skip
AUTHORITIES = Counter(
    "kvpool_controller_authority_looks", "Looks after the members' authorities, by result: ok, failed", ["result"],
    registry=REGISTRY,
)  # fmt: skip
AUTHORITY_EXPIRES = Gauge(
    "kvpool_controller_authority_expires_seconds", "When the newest authority of the members expires, since 1970",
    registry=REGISTRY,
)  # fmt: skip


def serve(port: int) -> None:
    """/metrics on all addresses of both families, in a thread of its own. Raises OSError where the port is taken."""
    start_http_server(port, "::" if socket.has_dualstack_ipv6() else "0.0.0.0", registry=REGISTRY)
