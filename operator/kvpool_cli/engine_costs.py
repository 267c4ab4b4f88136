"""What computing a prompt costs an engine and what finding it there does, measured over the engine's own HTTP API.

For each length a few prompts that are new to the engine, one after another, each asked for twice: the first time it is
computed, the second time the engine finds it in its own caches. A salt of its own makes a prompt new, so the token ids
can be such as every vocabulary has.
"""

import http.client
import itertools
import json
import secrets
import statistics
import time
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvpool_lab.costs import PrefillCurve

ASKED = 3  # prompts of each length: the median of an odd number is one of them
SHORTEST = 128
ANSWER_SECONDS = 600.0
FIRST_TOKEN, TOKENS = 100, 400  # ids
TOO_LONG = (400, 413, 422)  # HTTP statuses by which an engine refuses a prompt beyond its length

# Seconds until the answer to a prompt of so many tokens, which a salt tells from all others; None: it is too long
Ask = Callable[[int, str], float | None]


class EngineError(Exception):
    """The engine could not be asked; the message names it and the fix."""


@dataclass(frozen=True)
class Point:
    """Medians for a prompt of so many tokens: seconds until the first token when it is computed, and when the engine
    holds it."""

    tokens: int
    cold_seconds: float
    hit_seconds: float


def curve(points: Sequence[Point]) -> PrefillCurve:
    """A longer prompt costs no less than a shorter one, however the medians came out."""
    cold = itertools.accumulate((point.cold_seconds for point in points), max)
    return PrefillCurve([(float(p.tokens), seconds) for p, seconds in zip(points, cold, strict=True)])


def measure(ask: Ask, longest: int) -> list[Point]:
    """Lengths double up to `longest` tokens, or as far as the engine takes them. The first prompt of all is not
    counted: engines compile what they need at their first request."""
    ask(SHORTEST, secrets.token_hex(8))
    found: list[Point] = []
    tokens = SHORTEST
    while tokens <= longest:
        cold, hit = [], []
        for _ in range(ASKED):
            salt = secrets.token_hex(8)
            first, second = ask(tokens, salt), ask(tokens, salt)
            if first is None or second is None:
                return found
            cold.append(first)
            hit.append(second)
        found.append(Point(tokens, statistics.median(cold), statistics.median(hit)))
        tokens *= 2
    return found


def over_http(url: str) -> Ask:
    """Asks the engine whose API is at this URL for one token at a time. What it answers raises EngineError."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise EngineError(f"--engine {url}: give the engine's address as http://HOST:PORT")
    host, port = parts.hostname, parts.port or 80

    def ask(tokens: int, salt: str) -> float | None:
        body = {
            "prompt": [FIRST_TOKEN + i * i * 31 % TOKENS for i in range(tokens)],
            "max_tokens": 1,
            "temperature": 0,
            "cache_salt": salt,
        }
        text = json.dumps(body)
        connection = http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)
        try:
            began = time.monotonic()
            connection.request("POST", "/v1/completions", text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            seconds = time.monotonic() - began
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"--engine {url}: it does not answer completions: {error}") from None
        finally:
            connection.close()
        if answer.status in TOO_LONG and tokens > SHORTEST:
            return None
        if answer.status != http.client.OK:
            raise EngineError(
                f"--engine {url}: it answered {answer.status} {answer.reason} to a completion of {tokens} tokens; give "
                "the URL of an engine that takes token ids without a key"
            )
        return seconds

    return ask
