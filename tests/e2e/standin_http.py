"""What an agent knows of an engine over HTTP: health, metrics, token ids and, for its probe, completions."""

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def token_ids(text: str) -> list[int]:
    """A character is a token, after one that begins each prompt."""
    return [1, *map(ord, text)]


def serve_http(
    address: tuple[str, int],
    metrics: Callable[[], str],
    complete: Callable[[dict[str, Any]], dict[str, Any] | int | None],
) -> ThreadingHTTPServer:
    """A server that the caller runs; port 0 takes a free one. complete: what it says of this body, or the status by
    which it refuses; None where it completes nothing."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = metrics() if self.path == "/metrics" else ""
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said: dict[str, Any] | int | None = complete(body) if self.path == "/v1/completions" else None
            if self.path == "/tokenize":
                said = {"tokens": token_ids(body["prompt"])}
            text = json.dumps(said) if isinstance(said, dict) else ""
            self.send_response(200 if isinstance(said, dict) else said or 404)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            """Nothing: a poll a second is no news."""

    return ThreadingHTTPServer(address, Handler)
