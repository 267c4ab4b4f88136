"""Whether members' blocks come as the pool asks: with `transport.type: RDMA` everything else is told, and by name.

Agents go on over TCP all the same: a pool that shares slowly is better than one that computes everything anew.
"""

from collections.abc import Sequence

from kvpool_contract.status import Transport
from kvpool_operator.desired.heard import One, meaning, seen

RDMA, IMPOSSIBLE, LOOKING = "RDMA", "RdmaImpossible", "rdma_looking"


def by_rdma(members: Sequence[One]) -> tuple[list[One], list[One]]:
    """Of the members that answer: those that can't use RDMA, and those that don't know yet."""
    without = [(m, m.status.transport) for m in members if m.status is not None and m.status.transport.in_use != RDMA]
    looking = [m for m, transport in without if transport.reason == LOOKING]
    return [m for m, transport in without if transport.reason != LOOKING], looking


def why(transports: Sequence[Transport]) -> str:
    """Each reason once, with what was seen."""
    return meaning(one.reason or "rdma_off" for one in transports) + seen(one.detail for one in transports)
