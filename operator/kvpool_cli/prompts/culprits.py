"""What the usual culprits of a lost prefix look like, each with a sentence and what to do about it. Pure.

A rule looks at the two prompts where they part, and, of chat requests, at what they were made of. The first one that
holds is named: those that explain the whole of a prompt come before those that look at a few characters.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvpool_cli.prompts.compared import Parting
from kvpool_cli.prompts.given import Prompt
from kvpool_contract.reason import Reason

CULPRITS = {
    reason.word: reason
    for reason in (
        Reason("same", "The prompts are the same.", "Nothing to do."),
        Reason("continues", "One prompt goes on where the other ends.", "Nothing to do: that is how prompts share."),
        Reason(
            "bos",
            "One side begins with a token that the other one lacks, or has twice: the beginning of the sequence (BOS).",
            "Let either the chat template or the tokenizer add it, not both: send messages, or token ids.",
        ),
        Reason(
            "tokenization",
            "The same text is cut into other tokens.",
            "Send back the token ids that were generated, or always text; not one time these and one time those.",
        ),
        Reason(
            "template",
            "The same messages are rendered differently: another chat template, or other options of it.",
            "Serve one version of the template, and keep chat_template_kwargs the same for all turns.",
        ),
        Reason(
            "reasoning",
            "What the model thought is in one of the prompts and not in the other.",
            "Send it back with every turn, or with none, as the model's template expects.",
        ),
        Reason("tool_order", "The same tools come in another order.", "Sort the tools by name before they are sent."),
        Reason(
            "json_key_order",
            "The same JSON has its keys in another order.",
            "Write JSON with sorted keys, and don't write anew what was sent before.",
        ),
        Reason(
            "whitespace",
            "The text differs in spaces and line breaks alone.",
            "Keep messages as they were sent and received: don't trim, indent or join them anew.",
        ),
        Reason(
            "date",
            "A date or a time stands in the prompt.",
            "Put it at the end of the prompt, or say no more than the day.",
        ),
        Reason(
            "id",
            "A random or counted id stands in the prompt.",
            "Leave ids of requests and sessions out of the prompt, or put them at its end.",
        ),
        Reason(
            "history",
            "The older part of the conversation was cut away or rewritten.",
            "Cut away many messages at a time, so that the beginning stays the same for many turns.",
        ),
        Reason("other", "The text differs.", "Put what differs from request to request behind what does not."),
    )
}  # fmt: skip
NEAR = 24  # characters around the difference in which a date or an id is looked for
ROW = 8  # tokens that prove that one prompt is the other one, moved
ENOUGH = 60  # characters of two texts that are the same but for whitespace
DATE = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
    r"|\d{1,2}:\d{2}(?::\d{2})?(?:\s?[AaPp]\.?[Mm]\b)?"
    r"|\d{1,4}[/.]\d{1,2}[/.]\d{2,4}"
    r"|\b\d{1,2}(?:st|nd|rd|th)?\s+(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?(?:,?\s+\d{4})?"
    r"|\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?\s+\d{1,2}(?:st|nd|rd|th)?(?:,?\s+\d{4})?"
    r"|\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b"
    r"|\b1[0-9]{9}(?:\.\d+|\d{3})?\b"
)
ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{3,}[0-9A-Za-z]|\b\d+\b")
SPACES = re.compile(r"\s+")
THINKING = re.compile(r"</?think(?:ing)?>")


@dataclass(frozen=True)
class Pair:
    """Two prompts and where they part."""

    first: Prompt
    second: Prompt
    parting: Parting

    @property
    def both(self) -> tuple[Prompt, Prompt]:
        return self.first, self.second

    @property
    def texts(self) -> tuple[str, str]:
        return self.first.tokens.text, self.second.tokens.text

    @property
    def positions(self) -> tuple[int, int]:
        """Of the first character that differs."""
        one, other = self.texts
        at = min(prompt.position(self.parting.at) for prompt in self.both)
        while at < min(len(one), len(other)) and one[at] == other[at]:
            at += 1
        return at, at

    def requests(self) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
        one, other = self.first.given.request, self.second.given.request
        return (one, other) if one is not None and other is not None else None


def culprit(pair: Pair) -> Reason:
    """The usual culprit that explains the difference; `other` where none does."""
    return CULPRITS[next((word for word, holds in RULES if holds(pair)), "other")]


def _same(pair: Pair) -> bool:
    return list(pair.first.tokens.ids) == list(pair.second.tokens.ids)


def _continues(pair: Pair) -> bool:
    return pair.parting.at == min(len(prompt.tokens.ids) for prompt in pair.both)


def _bos(pair: Pair) -> bool:
    """One side is the other one with one token more before it, which is the BOS or stands there already."""
    for more, less in (pair.both, pair.both[::-1]):
        many, few = list(more.tokens.ids), list(less.tokens.ids)
        extra = many[:1]
        if many[1 : ROW + 1] == few[:ROW] and (more.bos is None or extra == [more.bos] or extra == few[:1]):
            return True
    return False


def _tokenization(pair: Pair) -> bool:
    one, other = pair.texts
    return bool(one) and one == other


def _template(pair: Pair) -> bool:
    """The same messages and tools, to the letter, and yet another prompt."""
    requests = pair.requests()
    if requests is None:
        return False
    return all(json.dumps(requests[0].get(part)) == json.dumps(requests[1].get(part)) for part in ("messages", "tools"))


def _reasoning(pair: Pair) -> bool:
    requests = pair.requests()
    if requests is not None:
        thoughts = [
            [message.get("reasoning_content") or message.get("reasoning") for message in request["messages"]]
            for request in requests
        ]
        return any(bool(one) != bool(other) for one, other in zip(*thoughts, strict=False))
    at = pair.positions[0]
    marks = [THINKING.search(text[max(0, at - NEAR) : at + NEAR]) is not None for text in pair.texts]
    return marks[0] != marks[1]


def _tool_order(pair: Pair) -> bool:
    lists = _tools_of_requests(pair) or _tools_in_texts(pair)
    one, other = ([_canonical(tool) for tool in tools] for tools in lists)
    return one != other and len(one) > 1 and Counter(one) == Counter(other)


def _tools_of_requests(pair: Pair) -> tuple[Sequence[Any], Sequence[Any]] | None:
    requests = pair.requests()
    return (requests[0].get("tools") or (), requests[1].get("tools") or ()) if requests is not None else None


def _tools_in_texts(pair: Pair) -> tuple[Sequence[Any], Sequence[Any]]:
    """The list, or the neighbouring objects, in which the texts part."""
    found = []
    for text, at in zip(pair.texts, pair.positions, strict=True):
        start, value = _enclosing(text, at)
        before = _neighbours_before(text, start)
        found.append(value if isinstance(value, list) else [*before, *_values(text, start)])
    return found[0], found[1]


def _neighbours_before(text: str, start: int) -> list[Any]:
    """JSON objects in the lines right before."""
    found: list[Any] = []
    for line in reversed(text[:start].splitlines()):
        values = list(_values(line, 0)) if line.strip() else []
        if line.strip() and not values:
            break
        found[:0] = values
    return found


def _values(text: str, start: int) -> Iterator[Any]:
    """JSON values from here on, with nothing but commas and whitespace between them."""
    decoder = json.JSONDecoder()
    while start < len(text):
        if text[start] in ", \t\r\n":
            start += 1
            continue
        try:
            value, start = decoder.raw_decode(text, start)
        except ValueError:
            return
        if not isinstance(value, dict | list):
            return
        yield value


def _enclosing(text: str, at: int) -> tuple[int, Any]:
    """Where the outermost JSON object or list around this character begins, and what it is; (at, None) where it is in
    none."""
    decoder = json.JSONDecoder()
    for match in re.finditer(r"[\[{]", text[: at + 1]):
        try:
            value, end = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        if end > at:
            return match.start(), value
    return at, None


def _json_key_order(pair: Pair) -> bool:
    values = [_enclosing(text, at)[1] for text, at in zip(pair.texts, pair.positions, strict=True)]
    if None in values:
        return False
    return _canonical(values[0]) == _canonical(values[1]) and json.dumps(values[0]) != json.dumps(values[1])


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _whitespace(pair: Pair) -> bool:
    """Behind the difference the texts go on alike, but for whitespace."""
    at = pair.positions[0]
    if not any(text[at : at + 1].isspace() or text[max(0, at - 1) : at].isspace() for text in pair.texts):
        return False
    one, other = (SPACES.sub("", text[max(0, at - 1) :])[:ENOUGH] for text in pair.texts)
    return one == other


def _date(pair: Pair) -> bool:
    return _spans(pair, DATE)


def _id(pair: Pair) -> bool:
    return _spans(pair, ID, lambda found: any(c.isdigit() for c in found))


def _spans(pair: Pair, pattern: re.Pattern[str], holds: Callable[[str], bool] = lambda _: True) -> bool:
    """Whether both texts have such a thing where they part, and another one."""
    found = []
    for text, at in zip(pair.texts, pair.positions, strict=True):
        start = max(0, at - 2 * NEAR)
        window = text[start : at + 2 * NEAR]
        found.append(
            next(
                (m[0] for m in pattern.finditer(window) if m.start() + start <= at <= m.end() + start and holds(m[0])),
                "",
            )
        )
    return all(found) and found[0] != found[1]


def _moved(pair: Pair) -> bool:
    """The message that one side has where they part comes later on the other one: what was before it there is gone."""
    requests = pair.requests()
    if requests is None:
        return False
    one, other = ([_canonical(message) for message in request["messages"]] for request in requests)
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return any(more[at:] and more[at] in less[at + 1 :] for more, less in ((one, other), (other, one)))


def _left_out(pair: Pair) -> bool:
    """A longer stretch of one side is not on the other one, which goes on as the first one does behind it."""
    skips = pair.parting.skips
    return min(skips) == 0 and max(skips) >= ROW


RULES: Sequence[tuple[str, Callable[[Pair], bool]]] = (
    ("same", _same),
    ("continues", _continues),
    ("bos", _bos),
    ("tokenization", _tokenization),
    ("template", _template),
    ("tool_order", _tool_order),
    ("json_key_order", _json_key_order),
    ("reasoning", _reasoning),
    ("history", _moved),
    ("whitespace", _whitespace),
    ("date", _date),
    ("id", _id),
    ("history", _left_out),
)
