"""Recorded requests, read as a stream: block ids in the order of the prompt, each id standing for its whole prefix.

Plain or compressed by gzip or xz; the format is told by the first line. *Mooncake*: a request a line, with
`input_length` and `hash_ids`, a `timestamp` in ms, and where it is known its `session` and `class`. *Claude Code
sessions*: kvpool_lab.sessions. *RAGPulse*: kvpool_lab.components. *Azure's of 2023*: a CSV of times and lengths;
they don't say what prompts have in common, so no block of theirs is found again.
"""

import csv
import gzip
import json
import lzma
import math
import zlib
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import IO, Any

from kvpool_lab import components, sessions
from kvpool_lab.recorded import BLOCK_TOKENS, Progress, Request, TraceError


def read(
    path: Path,
    block_tokens: int = BLOCK_TOKENS,
    progress: Progress = lambda _part: None,
) -> Iterator[Request]:
    """The requests in their order. block_tokens: where the trace does not say; progress: gets the part read so far.
    Raises TraceError."""
    try:
        size = max(1, path.stat().st_size)
        with path.open("rb") as raw:
            opened = _plain(path, raw)

            def told() -> None:
                progress(min(1.0, raw.tell() / size))

            begin = opened.readline()
            if begin.startswith(b"TIMESTAMP,"):
                yield from _arrivals(path, begin, opened, block_tokens, told)
                return
            lines = _lines(path, chain([begin] if begin else [], opened), told)
            first = next(lines, None)
            if first is None:
                raise TraceError(f"{path}: it holds no request")
            numbered = enumerate(chain([first], lines), 1)
            if "requests" in first:
                yield from sessions.merged(path, first, lines)
            elif isinstance(first.get("hash_ids"), dict):
                yield from components.chained(path, numbered, block_tokens)
            else:
                for number, document in numbered:
                    yield _request(path, number, document, block_tokens)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise TraceError(f"{path}: it can't be read: {error}") from None


def _plain(path: Path, raw: IO[bytes]) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    return lzma.LZMAFile(raw) if path.suffix == ".xz" else raw


def _lines(path: Path, opened: Iterator[bytes], told: Callable[[], None]) -> Iterator[dict[str, Any]]:
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
    at = document.get("timestamp", 0)
    if not isinstance(at, int | float) or not math.isfinite(at):
        raise TraceError(f"{path}, line {number}: timestamp {at!r} is no number; write milliseconds")
    size = size if isinstance(size, int) and size > 0 else block_tokens
    return Request(tokens, blocks, size, at / 1000, str(document.get("session", "")), str(document.get("class", "")))


def _arrivals(
    path: Path, begin: bytes, opened: IO[bytes], block_tokens: int, told: Callable[[], None]
) -> Iterator[Request]:
    """A block here is its request's own: the n-th block of all."""
    rows = csv.DictReader(line.decode(errors="replace") for line in chain([begin], opened))
    used, start = 0, None
    for number, row in enumerate(rows, 2):
        try:
            moment = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            tokens = int(row["ContextTokens"])
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{path}, line {number}: it is no row of times and lengths: {error!r}") from None
        start = moment if start is None else start
        count = -(-tokens // block_tokens)
        told()
        yield Request(tokens, list(range(used, used + count)), block_tokens, moment - start)
        used += count
