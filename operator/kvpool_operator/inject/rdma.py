"""What a pool's RDMA adds to the agent's resources: a device plug-in gives a container what it has asked for.

Such a resource can't be shared out in parts or overcommitted, so request and limit are the same. What a device needs
beside it, memory that may be locked and a network of the device's, is the node's and the pod's own: docs/operations.md.
"""

from kvpool_operator.desired.pool import KVCachePool


def rdma_resource(pool: KVCachePool) -> dict[str, str]:
    """Added to requests and to limits; empty where the pool names no resource, or uses TCP alone."""
    transport = pool.spec.transport
    return {transport.rdma.resource: "1"} if transport.rdma.resource and transport.type != "TCP" else {}
