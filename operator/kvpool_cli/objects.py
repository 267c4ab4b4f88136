"""The objects that `kvpool check` looks at, read from the API server with the user's own rights.

Nothing is written: the one pod that is made is a dry run. What the user may not read is told as such.
"""

import json
from collections.abc import Callable
from typing import Any

from kvpool_cli.findings import ClusterFacts, Denied, Document
from kvpool_cli.members import MembersError, context_namespace
from kvpool_contract.names import API_GROUP, POOL_LABEL

TIMEOUT_SECONDS = 10.0
NOT_FOUND = 404
PLURAL = "kvcachepools"
REGISTRATION = "injector.kvpool.io"
NOBODY = "kvpool-check-nobody"  # a pool that nobody has: admission says so of a pod that it looks at
CONTROLLER = "app.kubernetes.io/name=kvpool,app.kubernetes.io/component=controller"


class Objects:
    """Raises MembersError where the cluster can't be reached at all."""

    def __init__(self, kubeconfig: str, k8s_namespace: str) -> None:
        # Imported here: the package takes a second to load.
        from kubernetes import client, config
        from kubernetes.client.exceptions import ApiException
        from kubernetes.config.config_exception import ConfigException
        from urllib3.exceptions import HTTPError

        self._refusal, self._silence = ApiException, HTTPError
        try:
            load: Any = config.load_kube_config  # its types are not declared
            load(config_file=kubeconfig or None)
            self.k8s_namespace = k8s_namespace or context_namespace(kubeconfig)
        except ConfigException as error:
            raise MembersError(f"the cluster can't be reached: {' '.join(str(error).split())}") from None
        self._core: Any = client.CoreV1Api()
        self._version: Any = client.VersionApi()
        self._apps: Any = client.AppsV1Api()
        self._slices: Any = client.DiscoveryV1Api()
        self._definitions: Any = client.ApiextensionsV1Api()
        self._registrations: Any = client.AdmissionregistrationV1Api()
        self._pools: Any = client.CustomObjectsApi()

    def cluster(self) -> ClusterFacts:
        registration, version = self.registration(), self._ask(self._version.get_code)
        if version is None or isinstance(version, Denied):
            raise MembersError("the API server does not tell its version; name the right context or --kubeconfig")
        name = f"{PLURAL}.{API_GROUP}"
        return ClusterFacts(
            version=version,
            nodes=self._list(self._core.list_node),
            definition=self._ask(self._definitions.read_custom_resource_definition, name),
            registration=registration,
            webhook_slices=self._webhook_slices(registration),
            deployments=self._list(self._apps.list_deployment_for_all_namespaces, label_selector=CONTROLLER),
            tried=self._try_pod(),
        )

    def registration(self) -> Document | Denied | None:
        return self._ask(self._registrations.read_mutating_webhook_configuration, REGISTRATION)

    def pool(self, name: str) -> Document | None:
        """Raises MembersError where it can't be read."""
        read, path = self._pools.get_namespaced_custom_object, (API_GROUP, "v1alpha1", self.k8s_namespace, PLURAL, name)
        return self._must(f"pool {name}", read, *path)

    def pod(self, name: str) -> Document | None:
        """Raises MembersError where it can't be read."""
        return self._must(f"pod {name}", self._core.read_namespaced_pod, name, self.k8s_namespace)

    def pods(self, pool: str) -> list[Document]:
        """Raises MembersError where they can't be read."""
        list_pods, selector = self._core.list_namespaced_pod, f"{POOL_LABEL}={pool}"
        found = self._must(f"the pods of pool {pool}", list_pods, self.k8s_namespace, label_selector=selector)
        return list((found or {"items": []})["items"])

    def _webhook_slices(self, registration: Document | Denied | None) -> list[Document] | Denied:
        if registration is None:
            return []
        if isinstance(registration, Denied):
            return registration
        service = registration["webhooks"][0]["clientConfig"].get("service") or {}
        selector = f"kubernetes.io/service-name={service.get('name')}"
        read = self._slices.list_namespaced_endpoint_slice
        return self._list(read, str(service.get("namespace")), label_selector=selector)

    def _try_pod(self) -> Document | Denied:
        pod = {
            "metadata": {"name": NOBODY, "labels": {POOL_LABEL: NOBODY}},
            "spec": {"containers": [{"name": "engine", "image": "none"}]},
        }
        tried = self._ask(self._core.create_namespaced_pod, self.k8s_namespace, pod, dry_run="All")
        return Denied(f"there is no namespace {self.k8s_namespace}") if tried is None else tried

    def _must(self, what: str, read: Callable[..., Any], *path: Any, **options: Any) -> Document | None:
        found = self._ask(read, *path, **options)
        if isinstance(found, Denied):
            raise MembersError(f"{what} can't be read: {found.why}")
        return found

    def _list(self, read: Callable[..., Any], *path: Any, **options: Any) -> list[Document] | Denied:
        found = self._ask(read, *path, **options)
        return list((found or {"items": []})["items"]) if not isinstance(found, Denied) else found

    def _ask(self, read: Callable[..., Any], *path: Any, **options: Any) -> Document | Denied | None:
        """The object, None where there is none."""
        try:
            answer = read(*path, **options, _preload_content=False, _request_timeout=TIMEOUT_SECONDS)
            document: Document = json.loads(answer.data)
        except self._refusal as error:
            return None if error.status == NOT_FOUND else Denied(f"{error.status} {error.reason}")
        except self._silence as error:
            raise MembersError(f"the API server does not answer: {' '.join(str(error).split())}") from None
        if document.get("kind") == "Status":  # some versions of the client hand a refusal over as an answer
            return None if document.get("code") == NOT_FOUND else Denied(f"{document.get('code')} {document['reason']}")
        return document
