"""The part of a pool that says what lies between its members: how blocks come, and how members prove who they are."""

from typing import Annotated, Literal

import msgspec

from kvpool_operator.desired.parts import Part, PoolError, field


class TlsSecret(Part, frozen=True):
    """A Secret of type kubernetes.io/tls in the pods' namespace, with the authorities of all members as ca.crt."""

    name: Annotated[
        str,
        field(
            "Name of the Secret. Its certificate names the pool by the URI kvpool://CLUSTER/ns/NAMESPACE/pool/POOL, "
            "where CLUSTER is the UID of the namespace kube-system.",
            max_length=253,
            pattern=r"^$|^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$",
        ),
    ] = ""


class Tls(Part, frozen=True):
    """How members prove to each other who they are; with Managed and Secret all bytes between them are encrypted."""

    mode: Annotated[
        Literal["Managed", "Secret", "Disabled"],
        field(
            "Managed: the operator signs a certificate for each pod, for a day. Secret: all pods use the one in "
            "secretRef, which may be written by cert-manager. Disabled: no certificates, and everything in clear. Pods "
            "of different modes share nothing."
        ),
    ] = "Managed"
    secret_ref: TlsSecret = msgspec.field(default_factory=TlsSecret)


MAX_DEVICES, DEVICE_NAME = 16, 64


class Rdma(Part, frozen=True):
    """The RDMA devices by which blocks come. Bytes read by RDMA are not encrypted, whatever `tls` says."""

    resource: Annotated[
        str,
        field(
            "The resource by which a device plug-in offers RDMA devices, such as rdma/hca_shared_devices_a: one is "
            "added to the agent's requests and limits. Empty: none is.",
            max_length=317,
            pattern=r"^$|^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        ),
    ] = ""
    devices: Annotated[
        list[Annotated[str, field("Name of a device.", max_length=DEVICE_NAME)]],
        field(
            "Names of the devices to use, such as mlx5_0. None: every one that the container can open.",
            max_length=MAX_DEVICES,
        ),
    ] = msgspec.field(default_factory=list)
    memlock: Annotated[
        Literal["Node", "IPCLock"],
        field(
            "By what right the arena is locked in memory. Node: the container's limit on locked memory, which the "
            "node's container runtime sets, has to be large enough. IPCLock: the agent runs as root with IPC_LOCK and "
            "no other capability, where the pods' namespace bears the label pod-security.kubernetes.io/enforce: "
            "privileged and the pod does not forbid it; elsewhere as with Node, and where the limit is too small then "
            "the status says why."
        ),
    ] = "Node"
    allow_unencrypted: Annotated[
        bool,
        field(
            "Blocks may go by RDMA, in clear, though members encrypt what they send otherwise. false: with tls.mode "
            "Managed and Secret they come by TCP."
        ),
    ] = False


class Transport(Part, frozen=True):
    """What lies between members."""

    type: Annotated[
        Literal["Auto", "TCP", "RDMA"],
        field(
            "How blocks come from other members. Auto: by RDMA where both ends can, else by TCP; the agents' status "
            "says why not. TCP: by TCP alone. RDMA: as Auto, and where a member can't, the condition TransportReady "
            "says so and the pool is degraded."
        ),
    ] = "Auto"
    rdma: Rdma = msgspec.field(default_factory=Rdma)
    tls: Tls = msgspec.field(default_factory=Tls)


def check_tls(tls: Tls) -> None:
    """Raises PoolError."""
    name = tls.secret_ref.name
    if tls.mode == "Secret" and not name:
        raise PoolError("pool field spec.transport.tls.secretRef.name: mode Secret needs it; name the Secret")
    if tls.mode != "Secret" and name:
        raise PoolError(
            f"pool field spec.transport.tls.secretRef.name: mode {tls.mode} uses none; remove it, or set mode: Secret"
        )
