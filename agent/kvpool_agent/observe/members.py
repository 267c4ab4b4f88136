"""Another member as this one sees it, for the status."""

from collections.abc import Iterable

from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.directory.members import Member
from kvpool_agent.peer.rdma.transport import Rdma
from kvpool_agent.policy.difference import differences
from kvpool_agent.store.slab import Slab
from kvpool_contract.status import Peer


def peer_statuses(members: Iterable[Member], slab: Slab | None, breakers: Breakers, rdma: Rdma) -> list[Peer]:
    """slab: of this member's format."""
    return [_peer(one, slab, *breakers.view(one.address), rdma.why_not(one.address)) for one in members]


def _peer(member: Member, slab: Slab | None, breaker: str, failures: int, not_by_rdma: str) -> Peer:
    welcome = member.welcome
    return Peer(
        address=member.address,
        live=member.live,
        member=welcome.member if welcome else "",
        state=welcome.state if welcome else "",
        format=welcome.format if welcome else "",
        blocks=welcome.blocks if welcome else 0,
        error=member.error,
        incarnation=welcome.incarnation if welcome else "",
        breaker=breaker,
        failures=failures,
        not_by_rdma=not_by_rdma,
        differences=differences(slab.fields, member.fields) if slab is not None and member.fields else [],
    )
