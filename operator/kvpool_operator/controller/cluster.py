"""The API server, as far as the controller needs it: few calls, each with a deadline, plain documents in and out.

Calls block; whoever awaits runs them in a thread. They are retried by the next pass and nowhere else.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException

from kvpool_contract.names import API_GROUP, POOL_LABEL, UPDATE_ANNOTATION
from kvpool_operator.desired.pods import AGENT_CONTAINER, Pod, living
from kvpool_operator.desired.pool import API_VERSION
from kvpool_operator.desired.update import Change

VERSION, PLURAL = API_VERSION.partition("/")[2], "kvcachepools"
FIELD_MANAGER = "kvpool-controller"
APPLY = "application/apply-patch+yaml"
STRATEGIC = "application/strategic-merge-patch+json"  # merges containers by name
TIMEOUT_SECONDS = (3.0, 10.0)  # to connect, to read
NOT_FOUND, CONFLICT = 404, 409
REFUSALS = (400, 403, 422)  # for good

KEYS_LABEL = "kvpool.io/keys"  # of a Secret that the controller keeps
MERGE = "application/merge-patch+json"

Document = dict[str, Any]
Key = tuple[str, str]  # Kubernetes namespace and name of a pool


@dataclass(frozen=True)
class Entries:
    """A Secret without what it holds: the names of its entries, whether it is the controller's, its version."""

    names: frozenset[str]
    ours: bool
    version: str


class RefusedError(Exception):
    """The API server refuses an object for good; the message is its own sentence."""


class Cluster:
    """Raises ApiException or urllib3's errors for what may pass by itself."""

    def __init__(self) -> None:
        settings: Any = client.Configuration()
        try:
            load: Any = config.load_incluster_config
            load(client_configuration=settings)
        except ConfigException:
            load = config.load_kube_config
            load(client_configuration=settings)
        settings.retries = 0
        self.api_client = api_client = client.ApiClient(settings)
        self._core: Any = client.CoreV1Api(api_client)
        self._custom: Any = client.CustomObjectsApi(api_client)

    # -- pools ---------------------------------------------------------------------------------------

    def pool_keys(self, k8s_namespaces: list[str]) -> list[Key]:
        """The pools of these namespaces; of all where none is named."""
        if k8s_namespaces:
            lists = [
                self._custom.list_namespaced_custom_object(
                    API_GROUP, VERSION, name, PLURAL, _request_timeout=TIMEOUT_SECONDS
                )
                for name in k8s_namespaces
            ]
        else:
            lists = [
                self._custom.list_cluster_custom_object(API_GROUP, VERSION, PLURAL, _request_timeout=TIMEOUT_SECONDS)
            ]
        return [(o["metadata"]["namespace"], o["metadata"]["name"]) for found in lists for o in found["items"]]

    def read_pool(self, key: Key) -> Document | None:
        namespace, name = key
        return _or_none(
            lambda: self._custom.get_namespaced_custom_object(
                API_GROUP, VERSION, namespace, PLURAL, name, _request_timeout=TIMEOUT_SECONDS
            )
        )

    def write_status(self, pool: Document, status: Document) -> Document:
        """Replaces the whole status and returns the pool; conflicts where that has changed since it was read."""
        written: Document = self._custom.replace_namespaced_custom_object_status(
            API_GROUP, VERSION, pool["metadata"]["namespace"], PLURAL, pool["metadata"]["name"],
            {**pool, "status": status}, field_manager=FIELD_MANAGER, _request_timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
        return written

    # -- objects of a pool ---------------------------------------------------------------------------

    def read(self, wanted: Document) -> Document | None:
        """What lies where `wanted` should."""
        name, namespace = wanted["metadata"]["name"], wanted["metadata"]["namespace"]
        read = {"ConfigMap": self._core.read_namespaced_config_map, "Service": self._core.read_namespaced_service}
        return _or_none(
            lambda: _document(
                read[wanted["kind"]](name, namespace, _preload_content=False, _request_timeout=TIMEOUT_SECONDS)
            )
        )

    def apply(self, wanted: Document) -> None:
        """Server-side apply: fields that we set are ours again, fields of others stay. Raises RefusedError."""
        name, namespace = wanted["metadata"]["name"], wanted["metadata"]["namespace"]
        patch = {"ConfigMap": self._core.patch_namespaced_config_map, "Service": self._core.patch_namespaced_service}
        with _refusals():
            patch[wanted["kind"]](
                name, namespace, wanted, field_manager=FIELD_MANAGER, force=True, _content_type=APPLY,
                _request_timeout=TIMEOUT_SECONDS,
            )  # fmt: skip

    def secret_entries(self, k8s_namespace: str, name: str) -> Entries | None:
        """What the entries of a Secret are called."""
        found = _or_none(
            lambda: _document(
                self._core.read_namespaced_secret(
                    name, k8s_namespace, _preload_content=False, _request_timeout=TIMEOUT_SECONDS
                )
            )
        )
        if found is None:
            return None
        metadata = found["metadata"]
        ours = KEYS_LABEL in (metadata.get("labels") or {})
        return Entries(frozenset(found.get("data") or {}), ours, metadata["resourceVersion"])

    def add_entries(self, k8s_namespace: str, name: str, data: Mapping[str, str], found: Entries | None) -> None:
        """Adds entries to a Secret as it was found, or makes it; conflicts where it has changed since. Raises
        RefusedError."""
        metadata: Document = {"name": name, "labels": {KEYS_LABEL: "managed"}}
        if found is not None:
            metadata["resourceVersion"] = found.version
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": dict(data)}
        options: Document = {"field_manager": FIELD_MANAGER, "_request_timeout": TIMEOUT_SECONDS}
        with _refusals():
            if found is None:
                self._core.create_namespaced_secret(k8s_namespace, body, **options)
            else:
                self._core.patch_namespaced_secret(name, k8s_namespace, body, _content_type=MERGE, **options)

    def pods(self, key: Key) -> list[Pod]:
        """The living pods with the pool's label. From the server's cache: a pass that sees yesterday's is followed by
        another one."""
        namespace, name = key
        answer = self._core.list_namespaced_pod(
            namespace, label_selector=f"{POOL_LABEL}={name}", resource_version="0", _preload_content=False,
            _request_timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
        return living(_document(answer)["items"])

    def update_agent(self, key: Key, change: Change, record: str) -> None:
        """Gives the agent of a pod of this pool its image; not where the pod has changed since it was read. Raises
        RefusedError, also where the API server keeps another image than it was told."""
        patch = {
            "metadata": {"resourceVersion": change.version, "annotations": {UPDATE_ANNOTATION: record}},
            "spec": {"initContainers": [{"name": AGENT_CONTAINER, "image": change.image}]},
        }
        with _refusals():
            answer = self._core.patch_namespaced_pod(
                change.pod, key[0], patch, field_manager=FIELD_MANAGER, _content_type=STRATEGIC,
                _preload_content=False, _request_timeout=TIMEOUT_SECONDS,
            )  # fmt: skip
            taken = _document(answer)
        images = [c["image"] for c in taken["spec"]["initContainers"] if c["name"] == AGENT_CONTAINER]
        if images != [change.image]:
            raise RefusedError(f"it has made {', '.join(images)} of it; name the image so in spec.agent.image")

    def create_event(self, event: Document) -> bool:
        """Whether it was not there yet."""
        try:
            self._core.create_namespaced_event(
                event["metadata"]["namespace"], event, _preload_content=False, _request_timeout=TIMEOUT_SECONDS
            )
        except ApiException as error:
            if error.status == CONFLICT:
                return False
            raise
        return True


def _document(answer: Any) -> Document:
    if not 200 <= answer.status < 300:
        raise ApiException(http_resp=answer)
    document: Document = json.loads(answer.data)
    return document


def _or_none(read: Callable[[], Document]) -> Document | None:
    try:
        return read()
    except ApiException as error:
        if error.status == NOT_FOUND:
            return None
        raise


@contextmanager
def _refusals() -> Iterator[None]:
    """Raises RefusedError for what the API server refuses for good."""
    try:
        yield
    except ApiException as error:
        if error.status in REFUSALS:
            raise RefusedError(_sentence(error)) from None
        raise


def _sentence(error: ApiException) -> str:
    try:
        return str(json.loads(error.body or "")["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"
