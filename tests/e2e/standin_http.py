"""What an agent reads of an engine over HTTP: health and metrics."""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def serve_metrics(port: int, metrics: Callable[[], str]) -> ThreadingHTTPServer:
    """A server that the caller runs; port 0 takes a free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = metrics() if self.path == "/metrics" else ""
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            """Nothing: a poll a second is no news."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
