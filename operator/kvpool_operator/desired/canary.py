"""The fidelity canary of a pool: how often a hit is compared with computing, and what members have found."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from kvpool_contract.reasons import explain
from kvpool_contract.status import AgentStatus
from kvpool_operator.desired.heard import few
from kvpool_operator.desired.parts import LIVE, Part, field


class Canary(Part, frozen=True):
    """Comparing loads with computing: whether other replicas' blocks change the answers of a replica."""

    interval_seconds: Annotated[
        float,
        field(
            "In so many seconds each replica computes one request at most that has gone on from other replicas' "
            "blocks, while none waits: up to 8192 tokens of its prompt, and three. Where the next token's chances then "
            "differ by a total variation of more than 8e-4, and more than twice what the engine differs from itself, "
            "nothing is loaded any more from the members that gave the blocks. 0: none is compared.",
            LIVE,
            ge=0,
            le=86400,
        ),
    ] = 0.0


def faithful(statuses: Sequence[AgentStatus], names: Mapping[str, str]) -> tuple[bool, str, str] | None:
    """Whether no answer was found that other members' blocks have changed, the reason and a sentence; None while no
    comparison has said anything. names: of the pods that there are, by UID."""
    canaries = [status.canary for status in statuses]
    if found := [canary for canary in canaries if canary.distrusted]:
        members = sorted({names.get(uid, uid) for canary in found for uid in canary.distrusted})
        sentence = f"{len(found)} of {len(canaries)} load nothing any more from {few(members)}"
        return False, "AnswersDiffer", f"{sentence}. {explain('canary_differs')}"
    if not any(canary.same for canary in canaries):
        return None
    return True, "AnswersSame", "What was compared gave the answers that computing gives."
