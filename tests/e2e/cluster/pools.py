"""A namespace of pools: what the controller's tests do with pools and ask of what it made of them."""

import json
from typing import Any

from kubernetes.client import ApiException

from cluster.kube import Kube, wait_for

SECONDS = 60.0
NAME, OBJECTS = "shop", "shop-kvpool"
NAMESPACE = "kvpool-controller-tests"


class Pools(Kube):
    """The pool `shop` and its objects, where no other is named."""

    def prepare(self) -> None:
        self.kubectl("create", "namespace", self.namespace)
        self.install_crd()

    def remove(self) -> None:
        """The namespace and all in it; nobody waits for its end."""
        self.kubectl("delete", "kvp", "--all")
        self.kubectl("delete", "namespace", self.namespace, "--wait=false")

    def clear(self) -> None:
        self.kubectl("delete", "kvp,configmaps,services,pods", "--all", "--grace-period=0", "--force")
        wait_for("no pool left", lambda: not self.custom.list_namespaced_custom_object(*self._pools)["items"], SECONDS)

    def create(self, name: str = NAME, **spec: Any) -> dict[str, Any]:
        """In clear where nothing else is said: agents of this machine have no tokens."""
        spec.setdefault("transport", {"tls": {"mode": "Disabled"}})
        document = {"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": {"name": name}, "spec": spec}
        return self.create_pool(document)

    def patch(self, spec: dict[str, Any]) -> None:
        self.kubectl("patch", "kvp", NAME, "--type=merge", "-p", json.dumps({"spec": spec}))

    def delete(self, name: str = NAME) -> None:
        """Returns when it is gone, which must not take anybody's help."""
        self.kubectl("delete", "kvp", name, "--timeout=20s")

    def pool(self, name: str = NAME) -> dict[str, Any]:
        found: dict[str, Any] = self.custom.get_namespaced_custom_object(*self._pools, name)
        return found

    def config_map(self, name: str = OBJECTS) -> Any:
        return _or_none(self.core.read_namespaced_config_map, name, self.namespace)

    def service(self, name: str = OBJECTS) -> Any:
        return _or_none(self.core.read_namespaced_service, name, self.namespace)

    def document(self) -> str:
        return str(self.config_map().data["agent.json"])

    def configuration(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.document())
        return found

    def wait_objects(self) -> tuple[Any, Any]:
        def look() -> tuple[Any, Any] | None:
            found = self.config_map(), self.service()
            return found if all(found) else None

        return wait_for("both objects", look, SECONDS)

    def own_objects(self) -> set[tuple[str, str]]:
        """Kinds and names of all objects of pools in the namespace."""
        lists = {
            "ConfigMap": self.core.list_namespaced_config_map(self.namespace),
            "Service": self.core.list_namespaced_service(self.namespace),
        }
        return {(k, o.metadata.name) for k, f in lists.items() for o in f.items if o.metadata.name.endswith("-kvpool")}

    def condition(self, kind: str, name: str = NAME) -> dict[str, Any]:
        conditions = self.pool(name).get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), {})

    def wait_condition(self, kind: str, status: str, reason: str, name: str = NAME) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = self.condition(kind, name)
            if (found.get("status"), found.get("reason")) == (status, reason):
                return found
            raise ValueError(found)

        return wait_for(f"{kind}={status} {reason}", look, SECONDS)

    def wait_status(self, **wanted: object) -> dict[str, Any]:
        """The status once these fields are so."""

        def look() -> dict[str, Any] | None:
            found: dict[str, Any] = self.pool().get("status", {})
            if {field: found.get(field) for field in wanted} == wanted:
                return found
            raise ValueError(found)

        return wait_for(f"{wanted}", look, SECONDS)

    def events(self, name: str = NAME) -> list[tuple[str, str]]:
        """Types and reasons of the Events about an object of this name."""
        listed = self.core.list_namespaced_event(self.namespace, field_selector=f"involvedObject.name={name}")
        return sorted((event.type, event.reason) for event in listed.items)

    def wait_event(self, reason: str, name: str = NAME) -> None:
        wait_for(f"{reason} of {name}", lambda: ("Warning", reason) in self.events(name), SECONDS)


def _or_none(read: Any, name: str, namespace: str) -> Any:
    try:
        return read(name, namespace)
    except ApiException as error:
        if error.status == 404:
            return None
        raise
