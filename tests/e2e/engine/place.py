"""A replica whose engine is driven without a server: what its agent has counted, and where it is reached."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from engine.altering_member import AlteringMember, hot_list
from engine.forged import ForgedEngine
from engine.measured import sees_only
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


@contextmanager
def member_instead(of: Place, for_: Place, keys: list[bytes]) -> Iterator[AlteringMember]:
    """A member that holds these blocks of one is the only one that the other sees."""
    pool = for_.replica.pool
    member = AlteringMember(pool, of.address, of.fingerprint, keys)
    seeds = pool.members.read_text()
    try:
        pool.members.write_text(f"{member.address}\n")
        sees_only(for_.replica, member.address)
        yield member
    finally:
        pool.members.write_text(seeds)
        member.close()
