"""What a trace is made of."""

from collections.abc import Callable
from dataclasses import dataclass

BLOCK_TOKENS = 512


class TraceError(ValueError):
    """The trace can't be read; the message says where and what is wrong."""


@dataclass(frozen=True)
class Request:
    """`tokens` of the prompt; `blocks` of `block_tokens` tokens, the last one perhaps not full; `at` in seconds of the
    trace's clock; `session` and `kind`, the class of traffic, where the trace has them."""

    tokens: int
    blocks: list[int]
    block_tokens: int
    at: float = 0.0
    session: str = ""
    kind: str = ""

    def tokens_of(self, blocks: int) -> int:
        """Tokens in the first so many blocks."""
        return min(blocks * self.block_tokens, self.tokens)


Progress = Callable[[float], None]
