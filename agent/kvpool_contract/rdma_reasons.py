"""The reasons why blocks don't come by RDMA: of this agent's devices, and of another member."""

from kvpool_contract.reason import Reason

RDMA_REASONS = (
    # of this agent's devices
    Reason(
        "rdma_looking",
        "The agent is looking for RDMA devices, or is registering its arena with them.",
        "Nothing to do: it takes seconds after a start.",
    ),
    Reason(
        "rdma_unencrypted",
        "Members encrypt what they send, and RDMA does not.",
        "Keep TCP, or set transport.rdma.allowUnencrypted where the RDMA network is nobody else's.",
    ),
    Reason(
        "rdma_no_pyverbs",
        "The agent's image holds no pyverbs.",
        "Use an image with the distribution's python3-pyverbs, as kvpool's own.",
    ),
    Reason(
        "rdma_mismatch",
        "The image's pyverbs and rdma-core are not of one release.",
        "Take both from one distribution, or build both from one source.",
    ),
    Reason(
        "rdma_no_device",
        "There is no RDMA device that the agent could use.",
        "Run the pod on a node with one; check transport.rdma.devices where it names some.",
    ),
    Reason(
        "rdma_device_not_given",
        "The node has an RDMA device, and the agent's container was not given it.",
        "Set transport.rdma.resource to what the node's device plug-in offers.",
    ),
    Reason(
        "rdma_device_denied",
        "The agent's container sees an RDMA device and may not open it.",
        "Set transport.rdma.resource to what the node's device plug-in offers; see its log.",
    ),
    Reason(
        "rdma_memlock",
        "The container's limit on locked memory does not let the arena be registered.",
        "Raise LimitMEMLOCK of the node's container runtime to infinity, or see transport.rdma.memlock.",
    ),
    Reason(
        "rdma_ipc_lock_namespace",
        "The agent has no IPC_LOCK: the pod's namespace is none of Pod Security's privileged ones.",
        "Label it pod-security.kubernetes.io/enforce=privileged, or raise LimitMEMLOCK of the node's container runtime "
        "and set transport.rdma.memlock to Node; then make the pod anew.",
    ),
    Reason(
        "rdma_ipc_lock_pod",
        "The agent has no IPC_LOCK: the pod forbids root (runAsNonRoot) or has users of its own (hostUsers: false).",
        "Take that out of the pod's template, or raise LimitMEMLOCK of the node's container runtime and set "
        "transport.rdma.memlock to Node.",
    ),
    Reason(
        "rdma_no_gid",
        "The device has no RoCE version 2 address of this pod's.",
        "Give the pod a network of the device's, as by a Multus annotation.",
    ),
    Reason(
        "rdma_port_down",
        "The device's port has no link.",
        "Look at cable and switch; the device is tried again.",
    ),
    Reason(
        "rdma_mtu",
        "The network device's MTU is below what RDMA packets of 1024 bytes need.",
        "Raise its MTU to 1500 at least, better 9000, on every device and switch between.",
    ),
    Reason(
        "rdma_process_ended",
        "The process of the RDMA device has died, or did not answer and was ended.",
        "See the agent's log; it is started again after a pause.",
    ),
    Reason(
        "rdma_failed",
        "A call to the RDMA device failed.",
        "See the detail and the agent's log; the device, or the member, is tried again after a pause.",
    ),
    Reason(
        "rdma_off",
        "This member uses no RDMA, by its configuration.",
        "Set transport.type to Auto or RDMA.",
    ),
    Reason(
        "rdma_too_many",
        "The RDMA device has as many queue pairs as it may.",
        "Nothing to do: others go on over TCP.",
    ),
    # of another member
    Reason(
        "rdma_peer_without",
        "The other member has no RDMA for this one.",
        "See transport in its status, or update its agent.",
    ),
    Reason(
        "rdma_withdrawn",
        "A slab can't be read now, or its key was changed under a read.",
        "Nothing to do: the request went on over TCP.",
    ),
    Reason(
        "rdma_refused",
        "The other member's device refused a read: the key is not valid any more.",
        "Nothing to do: the request went on over TCP; see the other member where it stays so.",
    ),
    Reason(
        "rdma_unreachable",
        "The other member's device does not acknowledge what is sent to it.",
        "Look at the network between the two devices: link, routes, MTU, packets that are lost.",
    ),
    Reason(
        "rdma_late",
        "A read did not end within its part of the request's deadline.",
        "Nothing to do where it is rare; else look at the network between the two devices.",
    ),
    Reason(
        "rdma_connection_lost",
        "The connection on which a read was arranged broke, or the time was up.",
        "Nothing to do: the request went on over TCP.",
    ),
    Reason(
        "rdma_tag",
        "A block that was read by RDMA does not match its tag.",
        "Nothing to do: the request went on over TCP; report it where it stays so.",
    ),
)
