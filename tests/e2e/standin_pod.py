"""The stand-in engine as the process of a pod: `python3 standin_pod.py [--model NAME] [--row-bytes N] [--rows N]
[--token-seconds S]`.

It joins as a real engine does, by what the injector gave to its container: the client on its PYTHONPATH, and one
variable with the engine port. Without them it is a bare engine: it answers, and computes everything. `/health` and
`/metrics` are on port 8000, and a completion is answered with the counts of `Served`. Told to end, it serves until its
Service has noticed: as long as requests come. Options that it doesn't know are an engine's.
"""

import argparse
import os
import signal
import threading
import time
from typing import Any

from standin_http import serve_http

PORT = 8000
BLOCK_TOKENS = 4
LINGER_SECONDS, LONGEST_LINGER = 3.0, 12.0  # the longest is within the pod's grace period


class Bare:
    """Completions without kvpool."""

    requests = 0

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.requests += 1
        computed = len(body["prompt"]) // BLOCK_TOKENS
        return {"computed": computed, "host": 0, "pool": 0, "equal": True, "first_token": 0.0}


def linger(engine: Any) -> None:
    """Until nobody has asked the engine anything for a while."""
    until, before = time.monotonic() + LONGEST_LINGER, -1
    while before != engine.requests and time.monotonic() < until:
        before = engine.requests
        time.sleep(LINGER_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="m", help="a field of the format")
    parser.add_argument("--row-bytes", type=int, default=4096, help="bytes of a block")
    parser.add_argument("--rows", type=int, default=256, help="blocks of its host pool")
    parser.add_argument("--token-seconds", type=float, default=0.0, help="that a joined one takes to compute a token")
    options, _ = parser.parse_known_args()
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    if configuration := os.environ.get("KVPOOL_CLIENT_CONFIG"):
        from standin_tenants import TenantsEngine

        from kvpool_client import settings

        socket = settings.parse(configuration).socket
        engine = TenantsEngine(
            socket,
            host="0.0.0.0",
            port=PORT,
            model=options.model,
            row_bytes=options.row_bytes,
            rows=options.rows,
            token_seconds=options.token_seconds,
            probe=True,
        ).start()
        end.wait()
        linger(engine)
        engine.close()
    else:
        bare = Bare()
        server = serve_http(("0.0.0.0", PORT), lambda: "", bare.complete)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        end.wait()
        linger(bare)


if __name__ == "__main__":
    main()
