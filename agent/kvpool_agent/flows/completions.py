"""The engine's own HTTP port on the loopback address: the one way to have an unmodified engine compute something."""

import http.client
import json
from typing import Any

MAX_ANSWER = 1 << 20  # bytes


def complete(port: int, body: dict[str, Any], seconds: float) -> tuple[int, bytes]:
    """The status and the body of what it answers. Raises OSError or HTTPException where it does not."""
    return _asked(port, seconds, "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})


def metrics(port: int, seconds: float) -> str:
    """Its counters, as text. Raises as `complete`."""
    return _asked(port, seconds, "GET", "/metrics")[1].decode(errors="replace")


def _asked(port: int, seconds: float, *request: Any) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request(*request)
        answer = connection.getresponse()
        return answer.status, answer.read(MAX_ANSWER)
    finally:
        connection.close()
