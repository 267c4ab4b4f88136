"""How long a request of a stand-in engine waits for its first token."""

import time
from collections.abc import Sequence

from standin_engine import StandInEngine


def first_token(engine: StandInEngine, tokens: Sequence[int]) -> float:
    """Asks for a prompt, whose blocks must be those that computing gives; seconds until its first token."""
    began = time.monotonic()
    served = engine.serve(tokens)
    assert served.equal
    return served.first_token - began
