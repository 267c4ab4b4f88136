"""The prompts that the agent asks for, to have a hit computed as well and both compared (its fidelity canary).

The agent says so with a plan; the engine's adapter shows the prompt when the request ends, and the first tokens of it
go to the agent. The agent's own requests for the comparison bear a mark: of such a request nothing is loaded from the
agent, stored or counted, and at its end alone is told how many of its tokens the engine's own caches held.
"""

import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# in a request's kv_transfer_params: the agent's own request, by which it compares
CANARY = "kvpool_canary"


@dataclass
class _Wanted:
    request: str
    plan: int
    tokens: int
    prompt: bytes = b""


class Samples:
    """At most one is wanted at a time, the last that was asked for. On the scheduler's thread, but for `forget`."""

    def __init__(self) -> None:
        self.known = False  # whether this agent has ever asked, and so knows what is answered
        self._wanted: _Wanted | None = None

    def want(self, request: str, plan: int, tokens: int) -> None:
        """The agent wants so many of the first tokens of this request's prompt, when it has ended."""
        self.known = True
        self._wanted = _Wanted(request, plan, tokens)

    def ended(self, request: str, prompt: Sequence[int]) -> None:
        """A request of this prompt ends, whose tokens alone name its blocks."""
        if (wanted := self._wanted) is not None and wanted.request == request:
            wanted.prompt = packed(prompt[: wanted.tokens])

    def take(self, request: str, plan: int) -> bytes:
        """The tokens of a request that went on by this plan, for the agent; empty where it wants none."""
        if (wanted := self._wanted) is None or wanted.request != request:
            return b""
        self._wanted = None
        return wanted.prompt if wanted.plan == plan else b""

    def forget(self) -> None:
        """The session is lost: who comes next may be another agent."""
        self.known = False
        self._wanted = None


def packed(tokens: Sequence[int]) -> bytes:
    """Token ids as they travel: four bytes each, in this machine's order, for both ends run on it."""
    return array.array("I", tokens).tobytes()


def unpacked(data: bytes) -> list[int]:
    """Raises ValueError where these are no whole ids."""
    tokens = array.array("I")
    tokens.frombytes(data)
    return tokens.tolist()


def canary_of(parameters: dict[str, Any] | None) -> str:
    """The mark of the agent's own request; empty for every other request."""
    found = (parameters or {}).get(CANARY)
    return found if isinstance(found, str) else ""
