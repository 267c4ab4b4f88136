"""What a worker tells its supervisor ten times a second, one line of JSON each; the next worker is given the last one.

So the state outlives a worker without the supervisor knowing any but `ready` of it: it hands the line on as it came.
"""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Beat:
    """ready: the pod may take traffic. state, reason: as in the status. blocks: held in the arena. disproved: a format
    (hex) that was expected and that the engine turned out not to have; discarded: bytes fetched for it in vain, told
    once."""

    ready: bool
    state: str = ""
    reason: str = ""
    blocks: int = 0
    disproved: str = ""
    discarded: int = 0

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, line: str) -> "Beat":
        """A beat of this or another version; what it does not say is as if there had been none."""
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = {}
        if not isinstance(found, dict):
            found = {}
        state, reason, blocks = found.get("state"), found.get("reason"), found.get("blocks")
        disproved, discarded = found.get("disproved"), found.get("discarded")
        return cls(
            found.get("ready") is True,
            state if isinstance(state, str) else "",
            reason if isinstance(reason, str) else "",
            blocks if isinstance(blocks, int) else 0,
            disproved if isinstance(disproved, str) else "",
            discarded if isinstance(discarded, int) else 0,
        )
