"""What an agent says of its calibration, a part of its status."""

import msgspec


class Calibrated(msgspec.Struct, frozen=True):
    """What the engine was asked to compute before its first request, so that costs are known by then: `prompts` that it
    computed, in `seconds` from the first of them on. `ended_by`: complete, traffic (a request came), deadline
    (loading.calibrationSeconds were over, or the pod turned ready before) or no_answer, of which `detail` says more;
    empty where none was wanted, and while it goes on."""

    prompts: int = 0
    seconds: float = 0.0
    ended_by: str = ""
    detail: str = ""
