"""What an agent knows of an engine over HTTP: health, metrics and, for its probe, completions."""

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def serve_http(
    port: int, metrics: Callable[[], str], complete: Callable[[dict[str, Any]], bool]
) -> ThreadingHTTPServer:
    """A server that the caller runs; port 0 takes a free one. complete: whether it has completed this body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = metrics() if self.path == "/metrics" else ""
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200 if self.path == "/v1/completions" and complete(body) else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing: a poll a second is no news."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
