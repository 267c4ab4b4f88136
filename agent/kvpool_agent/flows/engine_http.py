"""The engine's own HTTP port on the loopback address: the one way to have an unmodified engine compute something."""

import http.client
import json
import socket
from collections.abc import Callable
from typing import Any

from kvpool_client.samples import CANARY

MAX_ANSWER = 1 << 20  # bytes
Connected = Callable[[socket.socket], object]


def _nobody(_connection: socket.socket) -> None:
    """Nobody but the caller ends the request."""


def complete(port: int, body: dict[str, Any], seconds: float, connected: Connected = _nobody) -> tuple[int, bytes]:
    """As `post`, to where completions are made. connected: is given the connection before it is asked by; shut down by
    another thread, the engine gives the request up, and this raises."""
    return _asked(port, seconds, MAX_ANSWER, connected, "POST", "/v1/completions", *_as_json(body))


def post(port: int, path: str, body: dict[str, Any], seconds: float, longest: int = MAX_ANSWER) -> tuple[int, bytes]:
    """The status and the body of what it answers, of which so many bytes are read. Raises OSError or HTTPException
    where it does not."""
    return _asked(port, seconds, longest, _nobody, "POST", path, *_as_json(body))


def marked(mark: str) -> dict[str, Any]:
    """The kv_transfer_params of a request of the agent's own, of which the client loads, stores and counts nothing
    (kvpool_client.samples), and vLLM puts nothing into its host tier."""
    return {CANARY: mark, "max_offload_tokens": 0}


def _as_json(body: dict[str, Any]) -> tuple[str, dict[str, str]]:
    return json.dumps(body), {"Content-Type": "application/json"}


def metrics(port: int, seconds: float) -> str:
    """Its counters, as text. Raises as `post`."""
    return _asked(port, seconds, MAX_ANSWER, _nobody, "GET", "/metrics")[1].decode(errors="replace")


def _asked(port: int, seconds: float, longest: int, connected: Connected, *request: Any) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.connect()
        connected(connection.sock)
        connection.request(*request)
        answer = connection.getresponse()
        return answer.status, answer.read(longest)
    finally:
        connection.close()
