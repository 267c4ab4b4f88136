"""The worker process, started and watched by the supervisor: `python3 -m kvpool_agent.worker`."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from kvpool_agent import descriptors
from kvpool_agent.app import Agent
from kvpool_agent.configuration import Configuration
from kvpool_agent.flows.certify import IdentityPlace
from kvpool_agent.heartbeat import Beat
from kvpool_agent.place import Place
from kvpool_agent.store.memory import ArenaMemory
from kvpool_contract import core_dumps
from kvpool_contract.config import ConfigError
from kvpool_contract.names import CACHE_NAMESPACES_VARIABLE, TEMPLATE_VARIABLE

log = logging.getLogger("kvpool.agent")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="kvpool_agent.worker")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--bind", required=True)
    parser.add_argument("--peer-port", type=int, required=True)
    parser.add_argument("--worker-port", type=int, required=True)
    parser.add_argument("--member", required=True)
    parser.add_argument("--arena-fd", type=int, required=True, help="memory file that the supervisor holds")
    parser.add_argument("--config-fd", type=int, required=True, help="memory file for the configuration in force")
    parser.add_argument("--beat-fd", type=int, required=True, help="pipe to the supervisor")
    parser.add_argument("--identity-dir", type=Path, required=True)
    parser.add_argument("--identity-fd", type=int, required=True, help="memory file for the certificate in force")
    parser.add_argument("--restarted", action="store_true")
    parser.add_argument("--latched", action="store_true")
    parser.add_argument("--last-beat", default="", help="the last beat of the worker before this one")
    return parser.parse_args(arguments)


async def serve(options: argparse.Namespace) -> None:
    configuration = Configuration(options.config, options.config_fd)
    if configuration.unknown_fields:
        log.warning("configuration fields that this version does not know: %s", ", ".join(configuration.unknown_fields))
    config = configuration.config
    memory = ArenaMemory(options.arena_fd, config.arenaBytes, huge_pages=config.hugePages)
    place = Place(
        options.bind,
        options.peer_port,
        options.worker_port,
        options.run_dir,
        options.member,
        options.restarted,
        options.latched,
        Beat.decode(options.last_beat),
        os.environ.get(TEMPLATE_VARIABLE, ""),
        IdentityPlace(options.identity_dir, options.config.parent, options.identity_fd),
        tuple(os.environ[CACHE_NAMESPACES_VARIABLE].split(",")) if CACHE_NAMESPACES_VARIABLE in os.environ else None,
    )

    def beat(beat: Beat) -> None:
        os.write(options.beat_fd, beat.encode().encode() + b"\n")

    agent = Agent(configuration, place, memory, beat)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.leave)
    await agent.run()


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    options = parse(sys.argv[1:])
    core_dumps.forbid()
    descriptors.take_all()
    try:
        asyncio.run(serve(options))
    except (ConfigError, OSError) as error:
        log.critical("%s", error)
        logging.shutdown()
        os._exit(2)
    # daemon threads may sit in a transfer; the process has nothing left to save
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
