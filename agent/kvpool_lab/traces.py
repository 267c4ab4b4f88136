"""Recorded requests, read as a stream: block ids in the order of the prompt, each id standing for its whole prefix.

Two formats, plain or compressed by gzip or xz, told apart by their first line. *Mooncake*: a request a line, with
`input_length` and `hash_ids`. *Claude Code sessions* (WEKA's kv-cache-tester, coded as differences): a session a line;
ids are a session's own, but the blocks of tools and system prompt, which sessions with equal sizes of both share. No
absolute time is recorded there, so sessions begin at random, evenly over six hours; only those that run are decoded.
"""

import gzip
import heapq
import json
import lzma
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

BLOCK_TOKENS = 512
SPREAD_SECONDS = 6 * 3600.0
SESSION_IDS = 2**32
SEED = 1


class TraceError(ValueError):
    """The trace can't be read; the message says where and what is wrong."""


@dataclass(frozen=True)
class Request:
    """`tokens` of the prompt; `blocks` of `block_tokens` tokens, the last one perhaps not full."""

    tokens: int
    blocks: list[int]
    block_tokens: int

    def tokens_of(self, blocks: int) -> int:
        """Tokens in the first so many blocks."""
        return min(blocks * self.block_tokens, self.tokens)


Progress = Callable[[float], None]


def read(path: Path, block_tokens: int = BLOCK_TOKENS, progress: Progress = lambda _part: None) -> Iterator[Request]:
    """The requests in their order. block_tokens: where the trace does not say; progress: gets the part read so far.
    Raises TraceError."""
    try:
        size = max(1, path.stat().st_size)
        with path.open("rb") as raw:
            opened = _plain(path, raw)
            lines = _lines(path, opened, lambda: progress(min(1.0, raw.tell() / size)))
            first = next(lines, None)
            if first is None:
                raise TraceError(f"{path}: it holds no request")
            if "requests" in first:
                yield from _merged(path, first, lines)
            else:
                yield _request(path, 1, first, block_tokens)
                for number, document in enumerate(lines, 2):
                    yield _request(path, number, document, block_tokens)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise TraceError(f"{path}: it can't be read: {error}") from None


def _plain(path: Path, raw: IO[bytes]) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    return lzma.LZMAFile(raw) if path.suffix == ".xz" else raw


def _lines(path: Path, opened: IO[bytes], told: Callable[[], None]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(opened, 1):
        try:
            document = json.loads(line)
        except ValueError as error:
            raise TraceError(f"{path}, line {number}: it is not JSON: {error}") from None
        if not isinstance(document, dict):
            raise TraceError(f"{path}, line {number}: it is no JSON object")
        told()
        yield document


def _request(path: Path, number: int, document: dict[str, Any], block_tokens: int) -> Request:
    tokens, blocks, size = document.get("input_length"), document.get("hash_ids"), document.get("block_size")
    if not isinstance(tokens, int) or not isinstance(blocks, list) or not set(map(type, blocks)) <= {int}:
        raise TraceError(f"{path}, line {number}: write input_length, a number, and hash_ids, a list of numbers")
    size = size if isinstance(size, int) and size > 0 else block_tokens
    return Request(tokens, blocks, size)


def _merged(path: Path, first: dict[str, Any], rest: Iterator[dict[str, Any]]) -> Iterator[Request]:
    """All sessions' requests by time."""
    draw = random.Random(SEED)
    sessions = [(draw.uniform(0, SPREAD_SECONDS), place, document) for place, document in enumerate([first, *rest])]
    sessions.sort(key=lambda each: each[:2])
    prompts: dict[tuple[int, int], int] = {}
    running: list[tuple[float, int, int, Request, Iterator[tuple[float, Request]]]] = []
    waiting = iter(sessions)
    coming = next(waiting, None)
    while coming is not None or running:
        if coming is not None and (not running or coming[0] <= running[0][0]):
            start, place, document = coming
            _advance(running, start, place, 0, _session(path, place, document, start, prompts))
            coming = next(waiting, None)
            continue
        at, place, number, request, more = heapq.heappop(running)
        yield request
        _advance(running, at, place, number + 1, more)


def _advance(running: list[Any], at: float, place: int, number: int, more: Iterator[tuple[float, Request]]) -> None:
    following = next(more, None)
    if following is not None:
        heapq.heappush(running, (max(at, following[0]), place, number, following[1], more))


def _session(
    path: Path, place: int, document: dict[str, Any], start: float, prompts: dict[tuple[int, int], int]
) -> Iterator[tuple[float, Request]]:
    """Time and request, in order. prompts: a number for each pair of sizes of tools and system prompt."""
    try:
        size = int(document["block_size"])
        sizes = (int(document["tool_tokens"]), int(document["system_tokens"]))
        common, shared = sum(sizes) // size, -1 - prompts.setdefault(sizes, len(prompts))
        chains: dict[str, list[int]] = {}
        for at, chain, tokens, _, keep, add, *_ in document["requests"]:
            ids = chains.get(chain, chains.get("", []))[:keep]
            for begin, count in zip(add[::2], add[1::2], strict=True):
                ids.extend(range(begin, begin + count))
            chains[chain] = ids
            own = [place * SESSION_IDS + each for each in ids[common:]]
            yield start + at, Request(tokens, [shared * SESSION_IDS - i for i in range(len(ids[:common]))] + own, size)
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path}, session {place + 1}: it is no session of this format: {error!r}") from None
