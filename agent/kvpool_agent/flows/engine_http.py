"""The engine's own HTTP port on the loopback address: the one way to have an unmodified engine compute something."""

import http.client
import json
from typing import Any

MAX_ANSWER = 1 << 20  # bytes


def complete(port: int, body: dict[str, Any], seconds: float) -> tuple[int, bytes]:
    """As `post`, to where completions are made."""
    return post(port, "/v1/completions", body, seconds)


def post(port: int, path: str, body: dict[str, Any], seconds: float, longest: int = MAX_ANSWER) -> tuple[int, bytes]:
    """The status and the body of what it answers, of which so many bytes are read. Raises OSError or HTTPException
    where it does not."""
    return _asked(port, seconds, longest, "POST", path, json.dumps(body), {"Content-Type": "application/json"})


def metrics(port: int, seconds: float) -> str:
    """Its counters, as text. Raises as `post`."""
    return _asked(port, seconds, MAX_ANSWER, "GET", "/metrics")[1].decode(errors="replace")


def _asked(port: int, seconds: float, longest: int, *request: Any) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request(*request)
        answer = connection.getresponse()
        return answer.status, answer.read(longest)
    finally:
        connection.close()
