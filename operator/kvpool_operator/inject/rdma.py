"""What a pool's RDMA adds to the agent's container: a device of a plug-in's, and the right to lock its arena in memory.

A device plug-in gives a container what it has asked for. Such a resource can't be shared out in parts or overcommitted,
so request and limit are the same. A network of the device's is the pod's own: docs/operations.md.

How much a container may lock is the node's to say. The one way around it is the capability IPC_LOCK, which counts for
root alone, and which Pod Security forbids but in namespaces that enforce `privileged`. One without that label may be
held to another profile by the API server's own configuration, and a pod that asked for it there would be refused.
"""

from typing import Any

from kvpool_contract.names import IPC_LOCK_VARIABLE
from kvpool_operator.desired.pool import KVCachePool

CAPABILITY = "IPC_LOCK"


def rdma_resource(pool: KVCachePool) -> dict[str, str]:
    """Added to requests and to limits; empty where the pool names no resource, or uses TCP alone."""
    transport = pool.spec.transport
    return {transport.rdma.resource: "1"} if transport.rdma.resource and transport.type != "TCP" else {}


def lock_memory(agent: dict[str, Any], pool: KVCachePool, spec: dict[str, Any], *, privileged: bool) -> str:
    """Gives the agent's container root and IPC_LOCK where the pool wants that and has a use for it. Where it can't be
    given returns why, a word of the contract's table, which the agent is told as well. spec: the pod's; privileged:
    whether its namespace lets it have them."""
    if not _wanted(pool):
        return ""
    if withheld := _withheld(spec, privileged=privileged):
        agent["env"].append({"name": IPC_LOCK_VARIABLE, "value": withheld})
        return withheld
    context = agent["securityContext"]
    context |= {"runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0}
    context["capabilities"]["add"] = [CAPABILITY]
    return ""


def _wanted(pool: KVCachePool) -> bool:
    transport = pool.spec.transport
    usable = transport.type != "TCP" and (transport.tls.mode == "Disabled" or transport.rdma.allow_unencrypted)
    return usable and transport.rdma.memlock == "IPCLock"


def _withheld(spec: dict[str, Any], *, privileged: bool) -> str:
    if (spec.get("securityContext") or {}).get("runAsNonRoot") or spec.get("hostUsers") is False:
        return "rdma_ipc_lock_pod"
    return "" if privileged else "rdma_ipc_lock_namespace"
