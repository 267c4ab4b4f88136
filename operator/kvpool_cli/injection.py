"""`kvpool inject`: which workload of a manifest joins the pool, and the manifest that comes out.

A manifest often holds more than the engine: a gateway, a Service, a job. If workloads carry the pool's label,
these join; if none does, the only one joins; several without a label are refused, since a wrong guess would
put an agent beside a gateway.
"""

from dataclasses import dataclass, replace
from typing import Any

from kvpool_cli import manifests
from kvpool_cli.arithmetic import memory
from kvpool_cli.manifests import Document, ManifestError
from kvpool_contract.names import POOL_LABEL
from kvpool_operator.desired.objects import pool_objects
from kvpool_operator.desired.pool import KVCachePool, PoolError, read_pool
from kvpool_operator.desired.trust import needs_trust
from kvpool_operator.inject import Injected, Settings, inject, restore

KINDS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job")


@dataclass(frozen=True)
class Outcome:
    """The manifest and what each of its workloads costs, or the workloads that were left alone with the reason of
    each. `withheld`: those whose agents are not given what the pool asks for, with the reason of each.
    `needs_operator`: the members' configuration is not in it, since the controller alone knows whom they are to
    trust."""

    text: str = ""
    costs: tuple[str, ...] = ()
    needs_operator: bool = False
    withheld: tuple[tuple[str, str], ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()


def load_pool(text: str) -> KVCachePool:
    """The one pool of a file; raises PoolError."""
    try:
        documents = manifests.load(text)
    except ManifestError as error:
        raise PoolError(f"pool: {error}") from None
    if len(documents) != 1:
        raise PoolError(f"pool: the file holds {len(documents)} documents; write one KVCachePool into it")
    return read_pool(documents[0].content)


def inject_manifest(text: str, pool: KVCachePool, settings: Settings) -> Outcome:
    """The pool's objects and every document of the manifest, with its workload joined to the pool."""
    documents = manifests.load(text)
    joining = _workloads(documents, pool.metadata.name)
    if not joining:
        return Outcome(skipped=tuple((_title(d.content), "unsupported_kind") for d in documents))
    objects = pool_objects(pool)
    texts = [manifests.dump(content) for content in objects]
    named = [_identity(content, "") for content in objects]
    skipped, costs, withheld = [], [], []
    for document in documents:
        if _identity(document.content, pool.metadata.namespace) in named:
            continue  # a manifest that has been through here before
        if document not in joining:
            texts.append(document.text)
            continue
        result = inject(_template(document.content), pool, replace(settings, claims=_claims(document.content)))
        if isinstance(result, Injected):
            texts.append(manifests.dump(_joined(document.content, result, pool.metadata.namespace)))
            costs.append(memory(_title(document.content), restore(_template(document.content)), result, pool))
            if result.withheld:
                withheld.append((_title(document.content), result.withheld))
        else:
            skipped.append((_title(document.content), result.reason))
    if skipped:
        return Outcome(skipped=tuple(skipped))
    return Outcome(manifests.join(texts), tuple(costs), needs_trust(pool), tuple(withheld))


def _workloads(documents: list[Document], pool: str) -> list[Document]:
    candidates = [d for d in documents if isinstance(d.content, dict) and d.content.get("kind") in (*KINDS, "Pod")]
    for document in candidates:
        if not isinstance(_template(document.content), dict):
            raise ManifestError(f"{_title(document.content)} has no spec.template; add the pod template")
    labelled = [d for d in candidates if _pool_label(d.content) == pool]
    if not labelled and len(candidates) > 1:
        names = ", ".join(_title(d.content) for d in candidates)
        raise ManifestError(
            f"the manifest holds {names}; label the pod template of the engine with {POOL_LABEL}: {pool}"
        )
    return labelled or candidates


def _pool_label(workload: dict[str, Any]) -> Any:
    metadata = _template(workload).get("metadata") or {}
    return (metadata.get("labels") or {}).get(POOL_LABEL)


def _template(workload: dict[str, Any]) -> Any:
    """A pod is its own template."""
    return workload if workload.get("kind") == "Pod" else (workload.get("spec") or {}).get("template")


def _claims(workload: dict[str, Any]) -> frozenset[str]:
    """Volumes that a StatefulSet gives each pod."""
    templates = (workload.get("spec") or {}).get("volumeClaimTemplates") or []
    return frozenset(str((claim.get("metadata") or {}).get("name", "")) for claim in templates)


def _joined(workload: dict[str, Any], result: Injected, k8s_namespace: str) -> dict[str, Any]:
    """Pods lie beside the ConfigMap that they mount, so the workload is in the pool's namespace or the pool's
    is written into it."""
    metadata = workload.get("metadata") or {}
    if metadata.get("namespace", k8s_namespace) != k8s_namespace:
        raise ManifestError(
            f"{_title(workload)} is in namespace {metadata['namespace']}, the pool in {k8s_namespace}; "
            f"give both the same metadata.namespace"
        )
    if workload.get("kind") == "Pod":
        return {**result.template, "metadata": {**result.template["metadata"], "namespace": k8s_namespace}}
    return {
        **workload,
        "metadata": {**metadata, "namespace": k8s_namespace},
        "spec": {**workload["spec"], "template": result.template},
    }


def _identity(content: Any, k8s_namespace: str) -> tuple[Any, ...]:
    """What the API server tells objects apart by; `k8s_namespace` is where an object without one goes."""
    if not isinstance(content, dict):
        return ()
    metadata = content.get("metadata") or {}
    return content.get("kind"), metadata.get("namespace", k8s_namespace), metadata.get("name")


def _title(content: Any) -> str:
    if not isinstance(content, dict):
        return "document"
    return f"{content.get('kind', 'document')} {(content.get('metadata') or {}).get('name', '')}".rstrip()
