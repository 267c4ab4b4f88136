"""What the members of a pool are told of certificates: where theirs come from, and whom they trust.

Who keeps the authorities knows it, the controller alone; a pool's ConfigMap is a function of both.
"""

from dataclasses import dataclass
from typing import Literal

from kvpool_contract.config import Tls
from kvpool_contract.identity import PEER_AUTHORITIES_FILE, SIGNER_AUTHORITIES_FILE
from kvpool_operator.desired.pool import KVCachePool

MANAGED, SECRET, DISABLED = "Managed", "Secret", "Disabled"
_AGENT_MODES: dict[str, Literal["Managed", "Files", "Disabled"]] = {
    MANAGED: "Managed",
    SECRET: "Files",
    DISABLED: "Disabled",
}


@dataclass(frozen=True)
class Trust:
    """`cluster`: its name in certificates. `signer`: host:port that signs for members. `peers` and
    `signer_authorities`: PEM, of those who vouch for members and for the signer."""

    cluster: str
    signer: str
    peers: str
    signer_authorities: str


def needs_trust(pool: KVCachePool) -> bool:
    """Whether the pool's configuration can't be written without it."""
    return pool.spec.transport.tls.mode != DISABLED


def agent_tls(pool: KVCachePool, trust: Trust | None) -> Tls:
    """The agents' side of `spec.transport.tls`."""
    mode = _AGENT_MODES[pool.spec.transport.tls.mode]
    if trust is None or not needs_trust(pool):
        return Tls(mode=mode)
    signer = trust.signer if mode == "Managed" else ""
    return Tls(mode=mode, signer=signer, cluster=trust.cluster, k8sNamespace=pool.metadata.namespace)


def authorities(pool: KVCachePool, trust: Trust | None) -> dict[str, str]:
    """Further entries of the pool's ConfigMap. The controller's certificate is of the peers' authority, so agents with
    certificates of their user's need that one, too."""
    if trust is None or not needs_trust(pool):
        return {}
    found = {PEER_AUTHORITIES_FILE: trust.peers}
    if pool.spec.transport.tls.mode == MANAGED:
        found[SIGNER_AUTHORITIES_FILE] = trust.signer_authorities
    return found
