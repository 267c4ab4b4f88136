"""`kvpool check` of a cluster, a pool or a pod: reads what the findings are decided from."""

import time

from kvpool_cli.findings import Finding, of_cluster, of_pod, of_pool
from kvpool_cli.members import MembersError, ask_pods
from kvpool_cli.objects import Objects
from kvpool_contract.names import POOL_LABEL


def inspect(pool: str, pod: str, k8s_namespace: str, kubeconfig: str) -> list[Finding]:
    """What there is to say of the pool or the pod; without either, of the cluster. Raises MembersError."""
    objects = Objects(kubeconfig, k8s_namespace)
    if pool:
        return _pool(objects, pool, kubeconfig)
    if pod:
        return _pod(objects, pod, kubeconfig)
    return list(of_cluster(objects.cluster(), time.time()))


def _pool(objects: Objects, name: str, kubeconfig: str) -> list[Finding]:
    found, pods = objects.pool(name), objects.pods(name)
    if found is None:
        raise MembersError(
            f"namespace {objects.k8s_namespace} has no KVCachePool {name}; create it, or correct name and namespace"
        )
    names = sorted(pod["metadata"]["name"] for pod in pods)
    answers = ask_pods(names, objects.k8s_namespace, kubeconfig)
    return list(of_pool(found, pods, answers, time.time()))


def _pod(objects: Objects, name: str, kubeconfig: str) -> list[Finding]:
    found = objects.pod(name)
    if found is None:
        raise MembersError(f"namespace {objects.k8s_namespace} has no pod {name}; correct name and namespace")
    pool = (found["metadata"].get("labels") or {}).get(POOL_LABEL, "")
    own = ask_pods([name], objects.k8s_namespace, kubeconfig)[0] if pool else None
    return list(of_pod(found, objects.pool(pool) if pool else None, objects.registration(), own))
