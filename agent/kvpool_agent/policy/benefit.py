"""What sharing has saved and cost lately, in seconds: every term as it was measured, and none hidden below zero.

    waiting = saved - loading - waited - stalled - written - displaced      (of requests, until their first token)
    gpu     = saved - stalled - written - displaced                        (of the engine)

`saved`: what the engine would have needed to compute what was loaded from other replicas' blocks; `loading`: what that
took; `waited`: by requests for plans that brought nothing; `stalled` and `written`: by decoding requests, to loads and
to stores beside them; `displaced`: computing blocks again that copies of others' blocks had pushed out.
"""

from kvpool_agent.policy.faded import Faded
from kvpool_agent.policy.sketch import Sketch

COLD, LOCAL, REMOTE, FALLBACK = KINDS = ("cold", "local", "remote", "fallback")
TERMS = ("saved", "loading", "waited", "stalled", "written", "displaced")
HALF_COUNT, HALF_SECONDS = 256.0, 600.0


def kind_of(*, held: int, loaded: int, shared: bool, tried: bool) -> str:
    """What a request was: `remote`, it loaded blocks that another replica computed; `fallback`, it was to load and had
    nothing of it; `local`, it found what this replica had computed; `cold`."""
    if loaded:
        return REMOTE if shared else LOCAL
    if tried:
        return FALLBACK
    return LOCAL if held else COLD


class Outcomes:
    """Seconds from a request's arrival to its first token, by what it was."""

    def __init__(self) -> None:
        self.kinds = {kind: Sketch(HALF_COUNT, HALF_SECONDS) for kind in KINDS}

    def add(self, kind: str, first: float, now: float) -> None:
        self.kinds[kind].add(first, now)


class Benefit:
    """Faded sums of the terms; `loads`: requests that loaded from other replicas, ever."""

    def __init__(self) -> None:
        self._terms = {term: Faded() for term in TERMS}
        self.loads = 0

    def add(self, term: str, seconds: float, now: float) -> None:
        self._terms[term].add(seconds, now)

    def terms(self, now: float) -> dict[str, float]:
        return {term: faded.at(now) for term, faded in self._terms.items()}


def balance(terms: dict[str, float]) -> tuple[float, float]:
    """(waiting, gpu): seconds saved less seconds lost, of requests and of the engine."""
    gpu = terms["saved"] - terms["stalled"] - terms["written"] - terms["displaced"]
    return gpu - terms["loading"] - terms["waited"], gpu
