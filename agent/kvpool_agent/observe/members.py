"""Another member as this one sees it, for the status."""

from kvpool_agent.directory.members import Member
from kvpool_agent.policy.difference import differences
from kvpool_agent.store.slab import Slab
from kvpool_contract.status import Peer


def peer_status(member: Member, slab: Slab | None, breaker: str, failures: int) -> Peer:
    """breaker, failures: of its address. slab: of this member's format."""
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
        differences=differences(slab.fields, member.fields) if slab is not None and member.fields else [],
    )
