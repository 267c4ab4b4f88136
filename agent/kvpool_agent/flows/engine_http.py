"""The engine's own HTTP port on the loopback address: the one way to have an unmodified engine compute something."""

import http.client
import io
import json
import socket
import time
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


class _Until(io.RawIOBase):
    """What comes on a connection until a time: a timeout of the socket's own would begin anew with each byte. It stands
    for the socket itself where http.client asks that for something to read from."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        super().__init__()
        self._connection, self._deadline = connection, deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Raises TimeoutError."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


def _asked(port: int, seconds: float, longest: int, connected: Connected, *request: Any) -> tuple[int, bytes]:
    deadline = time.monotonic() + seconds
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.connect()
        connected(connection.sock)
        connection.request(*request)
        answer = http.client.HTTPResponse(_Until(connection.sock, deadline), method=request[0])  # type: ignore[arg-type]
        with answer:
            answer.begin()
            return answer.status, answer.read(longest)
    finally:
        connection.close()
