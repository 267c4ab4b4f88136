"""Service meshes: their proxies leave the agent's ports alone.

Agents have a protocol of their own, which a proxy would slow down or break, and a newcomer's probes must not wait
for a proxy. The annotations are read when the mesh injects, which is after kvpool's webhook by the order of names.
"""

from kvpool_contract.names import PEER_PORT, SUPERVISOR_PORT, WORKER_PORT
from kvpool_operator.inject.edits import Edits

_IN, _OUT = (PEER_PORT, SUPERVISOR_PORT, WORKER_PORT), (PEER_PORT,)
EXCLUDED = {
    "traffic.sidecar.istio.io/excludeInboundPorts": _IN,
    "traffic.sidecar.istio.io/excludeOutboundPorts": _OUT,
    "config.linkerd.io/skip-inbound-ports": _IN,
    "config.linkerd.io/skip-outbound-ports": _OUT,
}


def exclude_ports(edits: Edits) -> None:
    """Adds the agent's ports to those that the user has excluded."""
    for name, ports in EXCLUDED.items():
        edits.add_words(name, map(str, ports))
