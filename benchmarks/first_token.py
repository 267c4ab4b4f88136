"""How long requests of a stand-in engine wait for their first token."""

import time
from collections.abc import Sequence

from standin_engine import StandInEngine


class FirstToken:
    """Of one engine, which is asked by one thread at a time."""

    def __init__(self, engine: StandInEngine) -> None:
        self._engine, self._at = engine, 0.0
        timings = engine.side.timings
        told = timings.first_token

        def first_token(request: str, now: float) -> None:
            self._at = now
            told(request, now)

        timings.first_token = first_token  # type: ignore[method-assign]

    def after(self, tokens: Sequence[int]) -> float:
        """Asks for a prompt, whose blocks must be those that computing gives; seconds until its first token."""
        began = time.monotonic()
        served = self._engine.serve(tokens)
        assert served.equal
        return self._at - began
