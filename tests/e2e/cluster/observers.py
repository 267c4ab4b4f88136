"""Two witnesses that run beside a test: every state of a Service's endpoints, and a client that never stops
asking."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kubernetes import watch
from urllib3.exceptions import HTTPError

from cluster.kube import Kube


class EndpointWatch:
    """Every change of the Service's endpoints as the API server tells it, with the time when it was seen."""

    def __init__(self, kube: Kube, service: str) -> None:
        self._kube, self._selector = kube, f"kubernetes.io/service-name={service}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="endpoints", daemon=True)
        self._seen: list[tuple[float, str, bool]] = []
        self._ready: list[int] = []

    def __enter__(self) -> "EndpointWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def history(self, pod: str) -> list[tuple[float, bool]]:
        """Times and readiness of a pod's endpoint, in the order in which they were seen."""
        return [(at, ready) for at, name, ready in list(self._seen) if name == pod]

    def was_ready(self, pod: str) -> bool:
        return any(ready for _, ready in self.history(pod))

    def fewest_ready(self) -> int:
        """How many endpoints were ready when there were fewest; for a Service with one slice."""
        return min(self._ready)

    def ready_now(self) -> int:
        return self._ready[-1] if self._ready else 0

    def _run(self) -> None:
        watcher: Any = watch
        changes = watcher.Watch().stream
        while not self._stop.is_set():
            # One second at a time, so that the end is noticed; each round begins with the present state.
            try:
                for event in changes(
                    self._kube.discovery.list_namespaced_endpoint_slice,
                    self._kube.namespace,
                    label_selector=self._selector,
                    timeout_seconds=1,
                ):
                    at = time.time()
                    endpoints = event["object"].endpoints or []
                    self._ready.append(sum(bool(endpoint.conditions.ready) for endpoint in endpoints))
                    for endpoint in endpoints:
                        if endpoint.target_ref:
                            self._seen.append((at, endpoint.target_ref.name, bool(endpoint.conditions.ready)))
            except HTTPError:
                continue


@dataclass
class Traffic:
    """Requests to an address, one after another, by `ask`, with pauses of `every` seconds; counts answers and
    failures."""

    host: str
    ask: Callable[[str], object]
    every: float = 1.0
    served: int = 0
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self.every):
            try:
                self.ask(self.host)
                self.served += 1
            except (OSError, ValueError) as error:
                self.failures.append(repr(error))
