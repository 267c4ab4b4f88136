"""Pod templates as short as they can be, and what the injector makes of them."""

from typing import Any

from kvpool_operator.desired.pool import read_pool
from kvpool_operator.inject import Injected, Settings, inject

SETTINGS = Settings(image="example.test/agent:1")
GUARANTEED = {"limits": {"cpu": "2", "memory": "8Gi"}, "requests": {"cpu": "2000m", "memory": "8192Mi"}}


def pool(**spec: Any) -> Any:
    return read_pool(
        {
            "apiVersion": "kvpool.io/v1alpha1",
            "kind": "KVCachePool",
            "metadata": {"name": "chat"},
            "spec": spec,
        }
    )


def template(*containers: dict[str, Any], labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"labels": labels or {}},
        "spec": {"containers": list(containers) or [engine()], **spec},
    }


def engine(**more: Any) -> dict[str, Any]:
    return {"name": "engine", "image": "example.test/vllm:1", **more}


def joined(given: dict[str, Any], wanted: Any = None) -> dict[str, Any]:
    result = inject(given, wanted or pool(), SETTINGS)
    assert isinstance(result, Injected), result
    return result.template


def first(given: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = given["spec"]["containers"][0]
    return container


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def own(given: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in given["spec"]["initContainers"] if c["name"] == name)
    return found
