"""Declared prefixes: the beginnings of prompts that members tell each other of where a pool's publication is Declared.

As text or as token ids; the text is turned into ids by each agent's own engine. All of them together are bounded, so
that the document which holds them stays below the 1 MiB that a ConfigMap may have.
"""

from collections.abc import Iterable
from dataclasses import dataclass

DECLARED, NEVER = "Declared", "Never"  # of a pool's publication
MAX_PREFIXES = 16
MAX_TEXT, MAX_TOKENS = 49_152, 16_384  # characters, token ids
MAX_TOKEN_ID = 2**31 - 1
TOO_LONG = f"they have more than {MAX_TEXT} characters or {MAX_TOKENS} token ids in all; shorten them, or declare fewer"


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """`text`: as it is given to the tokenizer, which adds the special tokens of its own; or `tokenIds`."""

    text: str = ""
    tokenIds: tuple[int, ...] = ()  # noqa: N815


def too_long(prefixes: Iterable[Prefix]) -> bool:
    """Whether all of them together are beyond the bounds."""
    given = list(prefixes)
    text, tokens = sum(len(one.text) for one in given), sum(len(one.tokenIds) for one in given)
    return text > MAX_TEXT or tokens > MAX_TOKENS


def wrong_with(prefixes: tuple[Prefix, ...]) -> str:
    """A sentence with the fix; empty where all can be used."""
    if len(prefixes) > MAX_PREFIXES:
        return f"{len(prefixes)} entries; use {MAX_PREFIXES}"
    if any(bool(one.text) == bool(one.tokenIds) for one in prefixes):
        return "an entry has both text and tokenIds, or neither; keep one"
    if any(not 0 <= token <= MAX_TOKEN_ID for one in prefixes for token in one.tokenIds):
        return f"a token id is not among 0 to {MAX_TOKEN_ID}; correct it"
    return TOO_LONG if too_long(prefixes) else ""
