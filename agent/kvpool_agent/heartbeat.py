"""What a worker tells its supervisor ten times a second, one line of JSON each; the next worker is given the last one.

So the state outlives a worker without the supervisor knowing any but `ready` of it: it hands the line on as it came.
"""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Beat:
    """ready: the pod may take traffic. state, reason: as in the status. blocks: held in the arena. engine, probe: the
    engine that was attached and what its probe has shown. disproved: a format (hex) that was expected and that the
    engine turned out not to have; discarded: bytes fetched for it in vain, told once. drain: seconds that
    the worker may take to hand over what it holds, when it is told to end."""

    ready: bool
    state: str = ""
    reason: str = ""
    blocks: int = 0
    engine: str = ""
    probe: str = ""
    disproved: str = ""
    discarded: int = 0
    drain: float = 0.0

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
        blocks, discarded = (found.get(name) for name in ("blocks", "discarded"))
        texts = (found.get(name) for name in ("state", "reason", "engine", "probe", "disproved"))
        state, reason, engine, probe, disproved = (text if isinstance(text, str) else "" for text in texts)
        return cls(
            found.get("ready") is True,
            state,
            reason,
            blocks if isinstance(blocks, int) else 0,
            engine,
            probe,
            disproved,
            discarded if isinstance(discarded, int) else 0,
        )
