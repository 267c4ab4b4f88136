"""Two witnesses that run beside a test: every state of a Service's endpoints, and a client that never stops
asking."""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from kubernetes import watch
from urllib3.exceptions import HTTPError

from cluster.engines import complete, prompt
from cluster.kube import Kube


class EndpointWatch:
    """Every change of the Service's endpoints as the API server tells it, with the time when it was seen."""

    def __init__(self, kube: Kube, service: str) -> None:
        self._kube, self._selector = kube, f"kubernetes.io/service-name={service}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="endpoints", daemon=True)
        self._seen: list[tuple[float, str, bool]] = []

    def __enter__(self) -> "EndpointWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def history(self, pod: str) -> list[tuple[float, bool]]:
        """Times and readiness of a pod's endpoint, in the order in which they were seen."""
        return [(at, ready) for at, name, ready in list(self._seen) if name == pod]

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
                    for endpoint in event["object"].endpoints or []:
                        if endpoint.target_ref:
                            self._seen.append((at, endpoint.target_ref.name, bool(endpoint.conditions.ready)))
            except HTTPError:
                continue


@dataclass
class Traffic:
    """Requests through a Service's address, one after another, over a few prompts; counts answers and
    failures."""

    host: str
    port: int = 80
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
        prompts = [prompt(9000 + i, 300) for i in range(4)]
        turn = 0
        while not self._stop.wait(1.0):
            try:
                complete(self.host, self.port, prompts[turn % len(prompts)])
                self.served += 1
            except (OSError, ValueError) as error:
                self.failures.append(repr(error))
            turn += 1
