"""The part of a pool that says what lies between its members."""

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


class Transport(Part, frozen=True):
    """What lies between members."""

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
