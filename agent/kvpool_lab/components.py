"""RAGPulse: a request's prompt as the parts that it was put together from, each with an id and a length of its own.

The lengths lie in files beside the trace. What two prompts have in common counts up to the first part that differs, as
in an engine: a block is named by its content and by all that comes before it. Parts stand in the order in which the
service writes them: system prompt, passages, history, web search, question.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kvpool_lab.recorded import Request, TraceError

PARTS = {
    "sys_prompt": ("1_sys_prompt.jsonl", "sys_prompt_id"),
    "passages_ids": ("2_passages.jsonl", "passage_id"),
    "history": ("3_history.jsonl", "history_id"),
    "web_search": ("5_web_search.jsonl", "web_search_id"),
    "user_input": ("4_user_input.jsonl", "user_input_id"),
}


def chained(path: Path, lines: Iterable[tuple[int, dict[str, Any]]], block_tokens: int) -> Iterator[Request]:
    """Raises TraceError."""
    lengths = {part: _lengths(path.parent / name, key) for part, (name, key) in PARTS.items()}
    for number, document in lines:
        try:
            parts = [(part, int(each)) for part in PARTS for each in document["hash_ids"][part]]
            pieces = [(part, each, lengths[part][each]) for part, each in parts]
            at, session = float(document["timestamp"]), str(document.get("session_id", ""))
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{path}, line {number}: it is no request of this format: {error!r}") from None
        tokens = sum(length for *_, length in pieces)
        yield Request(tokens, _blocks(pieces, block_tokens), block_tokens, at, session)


def _blocks(pieces: list[tuple[str, int, int]], block_tokens: int) -> list[int]:
    order = list(PARTS)
    blocks: list[int] = []
    parent, room, content = 0, block_tokens, []
    for part, name, length in pieces:
        begin = 0
        while begin < length:
            count = min(room, length - begin)
            content.append((order.index(part), name, begin, count))
            begin, room = begin + count, room - count
            if not room:
                parent = hash((parent, *content))
                blocks.append(parent)
                room, content = block_tokens, []
    if content:
        blocks.append(hash((parent, *content)))
    return blocks


def _lengths(path: Path, key: str) -> dict[int, int]:
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return {row[key]: row["token_length"] for row in rows}
    except FileNotFoundError:
        raise TraceError(f"{path} is missing; it has the lengths of the trace's parts, so put it beside it") from None
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path}: it is no list of lengths: {error!r}") from None
