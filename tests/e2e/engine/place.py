"""A replica whose engine is driven without a server: what its agent has counted, and where it is reached."""

from dataclasses import dataclass

from engine.altering_member import hot_list
from engine.forged import ForgedEngine
from replica import LOOPBACK, Replica

from kvpool_agent.policy.heat import HotBlock


@dataclass(frozen=True)
class Place:
    """A replica's agent and its engine."""

    replica: Replica
    engine: ForgedEngine

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.replica.peer_port}"

    @property
    def fingerprint(self) -> bytes:
        return bytes.fromhex(self.replica.status()["format"])

    def counted(self) -> list[HotBlock]:
        """All blocks that its agent has counted."""
        return hot_list(self.replica.pool, self.address, self.fingerprint)
