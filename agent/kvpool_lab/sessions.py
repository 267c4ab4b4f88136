"""WEKA's kv-cache-tester: Claude Code sessions, coded as differences, a session a line.

Ids are a session's own, but the blocks of tools and system prompt, which sessions with equal sizes of both share. No
absolute time is recorded there, so sessions begin at random, evenly over six hours; only those that run are decoded.
"""

import heapq
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvpool_lab.recorded import Request, TraceError

SPREAD_SECONDS = 6 * 3600.0
SESSION_IDS = 2**32
SEED = 1


def merged(path: Path, first: dict[str, Any], rest: Iterator[dict[str, Any]]) -> Iterator[Request]:
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
            blocks = [shared * SESSION_IDS - i for i in range(len(ids[:common]))] + own
            yield start + at, Request(tokens, blocks, size, start + at, str(place))
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path}, session {place + 1}: it is no session of this format: {error!r}") from None
