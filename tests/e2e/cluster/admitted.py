"""Pods through the admission of a real API server, and what came of them."""

import contextlib
import copy
import json
import threading
from typing import Any

from kubernetes import client

from cluster.kube import Kube, wait_for

TEAM, ELSEWHERE = "kvpool-webhook-team", "kvpool-webhook-elsewhere"


def create_pool(kube: Kube, document: dict[str, Any]) -> None:
    objects: Any = client.CustomObjectsApi(kube.core.api_client)
    place = document["metadata"]["namespace"]
    objects.create_namespaced_custom_object("kvpool.io", "v1alpha1", place, "kvcachepools", document)


def pod(name: str = "x", annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"kvpool.io/pool": "chat"}, "annotations": annotations or {}},
        "spec": {
            "containers": [{"name": "engine", "image": "vllm:1"}],
            "nodeSelector": {"kvpool-test": "nowhere"},
            "automountServiceAccountToken": False,
            **spec,
        },
    }


def created(kube: Kube, body: dict[str, Any], place: str = TEAM, *, dry: bool = True) -> dict[str, Any]:
    """The pod that comes out of admission, as the API server writes it."""
    options = {"dry_run": "All"} if dry else {}
    answer = kube.core.create_namespaced_pod(place, body, _preload_content=False, **options)
    document: dict[str, Any] = json.loads(answer.data)
    return document


def comparable(document: dict[str, Any]) -> dict[str, Any]:
    """Without what the API server gives each pod, and what follows from its namespace or from when it was joined (also
    plain values of the agent's variables)."""
    kept = copy.deepcopy(document)
    for field in ("namespace", "uid", "creationTimestamp", "managedFields"):
        kept["metadata"].pop(field, None)
    kept.pop("status")
    for container in kept["spec"].get("initContainers", []):
        for variable in container.get("env", []) if container["name"] == "kvpool-agent" else []:
            variable.pop("value", None)
    for name in ("kvpool.io/config-hash", "kvpool.io/originals"):
        kept["metadata"].get("annotations", {}).pop(name, None)
    return kept


def is_joined(document: dict[str, Any]) -> bool:
    return [c["name"] for c in document["spec"].get("initContainers", [])] == ["kvpool-client", "kvpool-agent"]


def skipped(document: dict[str, Any]) -> str | None:
    found: str | None = (document["metadata"].get("annotations") or {}).get("kvpool.io/skipped")
    return found


def joined_in(kube: Kube, body: dict[str, Any], place: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        document = created(kube, body, place)
        return document if is_joined(document) else None

    return wait_for(f"a pod joins in {place}", look, 30)


def qos_class(document: dict[str, Any]) -> str:
    return str(document["status"]["qosClass"])


def refused(kube: Kube) -> bool:
    try:
        created(kube, pod())
    except client.ApiException as error:
        return "failed calling webhook" in error.body
    return False


def wait_joined(kube: Kube) -> None:
    """Until a pod comes out joined."""

    def look() -> bool:
        with contextlib.suppress(client.ApiException):
            return is_joined(created(kube, pod()))
        return False

    wait_for("pods join", look, 60)


class Stream:
    """Pods created one after another, by four at a time; `wrong` holds what was not joined."""

    def __init__(self, kube: Kube) -> None:
        self._kube, self._end = kube, threading.Event()
        self.done, self.wrong = 0, list[Any]()
        self._threads = [threading.Thread(target=self._run) for _ in range(4)]

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                document = created(self._kube, pod())
                if not is_joined(document):
                    self.wrong.append(document)
            except Exception as error:  # noqa: BLE001
                self.wrong.append(error)
            self.done += 1

    def more(self, count: int) -> None:
        wanted = self.done + count
        wait_for(f"{count} more reviews", lambda: self.done >= wanted, 60)

    def __enter__(self) -> "Stream":
        for thread in self._threads:
            thread.start()
        self.more(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
