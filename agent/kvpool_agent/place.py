"""What a worker is told at its start beside its configuration."""

from dataclasses import dataclass
from pathlib import Path

from kvpool_agent.flows.certify import IdentityPlace
from kvpool_agent.heartbeat import Beat


@dataclass(frozen=True)
class Place:
    """Where this worker runs: addresses, folder, what the supervisor told it; the hash of its pod's template, empty
    where it is not known; the cache namespaces that its pod may hold beside the default one, None for all."""

    bind: str
    peer_port: int
    worker_port: int
    run_dir: Path
    member: str
    restarted: bool
    latched: bool
    last_beat: Beat
    template: str
    identity: IdentityPlace
    cache_namespaces: tuple[str, ...] | None = None
