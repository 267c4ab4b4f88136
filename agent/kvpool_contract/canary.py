"""What an agent says of its fidelity canary, a part of its status."""

import msgspec


class Canary(msgspec.Struct, frozen=True):
    """What comparing hits with computing has shown. `state` of the last comparison: same, differs, inconclusive (the
    engine's caches held something else by then) or not_run (the engine gives no answer to compare), with `detail`;
    empty before the first. How many ended so; the last one's total variation, and what the engine differs from itself.
    `distrusted`: members (pod UIDs) from which nothing is loaded any more."""

    state: str = ""
    detail: str = ""
    same: int = 0
    differs: int = 0
    inconclusive: int = 0
    not_run: int = 0
    variation: float = 0.0
    noise: float = 0.0
    distrusted: list[str] = []
