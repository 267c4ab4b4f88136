"""`python3 -m kvpool_operator.webhook`: the webhook's process."""

import argparse
import asyncio
import logging
import re
import signal
from datetime import timedelta
from pathlib import Path

from kvpool_contract import core_dumps
from kvpool_operator.inject import Settings
from kvpool_operator.webhook.api import ApiError, ApiServer
from kvpool_operator.webhook.server import Options, serve


def options() -> Options:
    """From the command line; ends the process with a sentence where it can't be used."""
    parser = argparse.ArgumentParser(prog="kvpool-webhook", description=__doc__)
    parser.add_argument("--certificates", type=Path, required=True, help="folder with tls.crt and tls.key")
    parser.add_argument("--peers", type=Path, help="folder with the authority that signs for members")
    parser.add_argument("--leaf-seconds", type=int, default=86400, help="life of what it signs (default %(default)s)")
    parser.add_argument("--agent-image", default="", help="the agent's image for pools that name none")
    parser.add_argument("--port", type=int, default=9443, help="reviews, HTTPS (default %(default)s)")
    parser.add_argument("--status-port", type=int, default=8080, help="health and metrics (default %(default)s)")
    parser.add_argument("--drain-seconds", type=float, default=5.0, help="serving after SIGTERM (default %(default)s)")
    parser.add_argument("--kubernetes-version", default="", help="of the oldest node (default: the server's)")
    parser.add_argument("--api-server", default="", help="URL in place of the cluster's own")
    parser.add_argument("--api-token-file", type=Path, help="with --api-server")
    parser.add_argument("--api-ca-file", type=Path, help="with --api-server")
    given = parser.parse_args()
    version = re.fullmatch(r"v?(\d+)\.(\d+)(\..*)?", given.kubernetes_version)
    if given.kubernetes_version and not version:
        parser.error(f"--kubernetes-version {given.kubernetes_version}: give major and minor, such as 1.31")
    if bool(given.api_server) != bool(given.api_token_file) or bool(given.api_server) != bool(given.api_ca_file):
        parser.error("--api-server, --api-token-file and --api-ca-file go together; give all three or none")
    if given.leaf_seconds < 360:  # five minutes of its life are in the past
        parser.error(f"--leaf-seconds {given.leaf_seconds}: give 360 at least")
    try:
        api = (
            ApiServer(given.api_server.rstrip("/"), given.api_token_file, given.api_ca_file)
            if given.api_server
            else ApiServer.of_the_cluster()
        )
    except ApiError as error:
        parser.error(str(error))
    kubernetes = (int(version[1]), int(version[2])) if version else None
    return Options(
        certificates=given.certificates,
        api=api,
        settings=Settings(default_image=given.agent_image, kubernetes=kubernetes),
        port=given.port,
        status_port=given.status_port,
        drain_seconds=given.drain_seconds,
        peers=given.peers,
        leaf_life=timedelta(seconds=given.leaf_seconds),
    )


async def run(chosen: Options) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(chosen, stop)


def main() -> None:
    core_dumps.forbid()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    chosen = options()
    try:
        asyncio.run(run(chosen))
    except OSError as error:
        raise SystemExit(f"the webhook can't serve: {error}") from None


if __name__ == "__main__":
    main()
