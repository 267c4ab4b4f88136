"""A prompt as somebody gives it: text, token ids, a completion or a chat request."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvpool_cli.prompts.tokenizer import Tokenizer, TokenizerError, Tokens


class GivenError(ValueError):
    """What was given is no prompt; one sentence."""


@dataclass(frozen=True)
class Given:
    """`request`: a chat request; else `text`, or `ids`."""

    request: Mapping[str, Any] | None = None
    text: str | None = None
    ids: Sequence[int] | None = None

    @property
    def is_chat(self) -> bool:
        return self.request is not None


@dataclass(frozen=True)
class Prompt:
    """A prompt in tokens; their text where a tokenizer is there to say it."""

    given: Given
    tokens: Tokens
    bos: int | None = None
    template: str = field(default="", repr=False)

    def around(self, at: int, tokens: int = 6) -> tuple[str, str, str]:
        """The text before a token, its own, and the text behind it."""
        places = self.tokens.places
        if not places:
            return "", "", ""
        if at >= len(places):
            return self.tokens.text[places[max(0, len(places) - tokens)][0] :], "", ""
        start, end = places[at]
        behind = places[min(len(places) - 1, at + tokens)][1]
        return self.tokens.text[places[max(0, at - tokens)][0] : start], self.tokens.text[start:end], self.tokens.text[
            end:behind
        ]  # fmt: skip

    def position(self, at: int) -> int:
        """Where a token begins in the text."""
        places = self.tokens.places
        return places[at][0] if at < len(places) else len(self.tokens.text)


def read(content: str) -> Given:
    """What is in a file: a chat request (an object with `messages`), a completion (one with `prompt`), token ids (a
    list of numbers, also as that prompt), a JSON string, or, if it is none of these, the text itself. Raises
    GivenError."""
    try:
        document = json.loads(content)
    except ValueError:
        return Given(text=content)
    if isinstance(document, dict) and isinstance(document.get("messages"), list):
        if not all(isinstance(message, dict) for message in document["messages"]):
            raise GivenError("messages holds something else than objects")
        return Given(request=document)
    found = document.get("prompt") if isinstance(document, dict) else document
    if isinstance(document, dict) and isinstance(document.get("prompt_token_ids"), list):
        found = document["prompt_token_ids"]
    if isinstance(found, str):
        return Given(text=found)
    if isinstance(found, list) and found and all(type(one) is int and one >= 0 for one in found):
        return Given(ids=found)
    if isinstance(document, dict):
        raise GivenError("the object has neither messages nor a prompt of text or token ids")
    return Given(text=content)


def prompt_of(given: Given, tokenizer: Tokenizer | None) -> Prompt:
    """Raises TokenizerError where text can't be turned into tokens."""
    if tokenizer is None:
        if given.ids is None:
            raise TokenizerError("text and chat requests need --tokenizer, the model's folder or its tokenizer.json")
        return Prompt(given, Tokens(given.ids, "", ()))
    if given.request is not None:
        tokens = tokenizer.of_text(tokenizer.render(given.request), special=False)
    elif given.text is not None:
        tokens = tokenizer.of_text(given.text, special=True)
    else:
        tokens = tokenizer.of_ids(given.ids or ())
    return Prompt(given, tokens, tokenizer.bos, tokenizer.template)
