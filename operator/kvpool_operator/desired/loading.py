"""When blocks of other replicas are loaded, and how much at a time."""

from typing import Annotated, Literal

from kvpool_contract.config import DEFAULT_MARGIN
from kvpool_operator.desired.parts import LIVE, Bytes, Part, field


class Loading(Part, frozen=True):
    """Loading of a request's blocks from other replicas."""

    mode: Annotated[
        Literal["Measured", "Always", "Never"],
        field(
            "Measured: blocks are loaded where that takes less time than computing them, by what both have cost "
            "lately, else computed. Always: whatever can be had is loaded. Never: nothing is; what is computed is "
            "shared all the same.",
            LIVE,
        ),
    ] = "Measured"
    margin: Annotated[
        float,
        field(
            "With Measured: by this factor a load must be faster in the slow case than computing in the usual one.",
            LIVE,
            ge=1,
            le=100,
        ),
    ] = DEFAULT_MARGIN
    deadline_seconds: Annotated[
        float,
        field(
            "After this much of a request's waiting, what has come is used and the rest computed.",
            LIVE,
            ge=0.05,
            le=3600,
        ),
    ] = 10.0
    max_bytes_per_second: Annotated[
        Bytes,
        field(
            "Bytes per second that a member fetches for requests at most, and gives at most to those of others. 0: no "
            "bound.",
            LIVE,
            least=0,
        ),
    ] = Bytes(0)
    calibration_seconds: Annotated[
        float,
        field(
            "A new replica's engine computes eight prompts of up to 8191 tokens, and a token each, before the replica "
            "turns ready: so Measured knows what computing costs from the first request on. That ends it, and it holds "
            "the pod back this long at most after the engine's attach. The engine's own counters count these prompts. "
            "0: none, so what computing costs is known after some requests. A pod whose engine has attached goes on as "
            "it was.",
            LIVE,
            ge=0,
            le=3600,
        ),
    ] = 0.0
