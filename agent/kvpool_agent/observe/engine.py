"""The engine's own word: its health, and its counters of prompt tokens by source.

Its metrics are long, and making them costs an engine's server milliseconds, so they are not asked for every second.
"""

import asyncio
import logging
from collections.abc import Callable

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from kvpool_contract.status import EngineTokens

log = logging.getLogger("kvpool.engine")

FIRST_SECONDS = 1.0  # from one look to the next until it is healthy
POLL_SECONDS = 5.0  # from then on
TIMEOUT_SECONDS = 2.0
_PREFIX = "vllm:prompt_tokens_"


def parse_tokens(text: str) -> EngineTokens:
    """The counters in an engine's /metrics. Only their lines are parsed: the rest may be thousands."""
    lines = "\n".join(
        line for line in text.splitlines() if line.startswith(_PREFIX) or line.startswith(f"# TYPE {_PREFIX}")
    )
    counts: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(lines + "\n"):
        for sample in family.samples:
            if sample.name.endswith("_total"):
                key = (sample.name, sample.labels.get("source", ""))
                counts[key] = counts.get(key, 0.0) + sample.value

    def cached(source: str) -> int:
        return int(counts.get((f"{_PREFIX}cached_by_source_total", source), 0))

    return EngineTokens(
        computed=int(counts.get((f"{_PREFIX}by_source_total", "local_compute"), 0)),
        device=cached("device"),
        host=cached("host"),
        pool=cached("p2p"),
    )


class EngineWatch:
    """Polls the engine on the loopback address; `healthy` and `tokens` are its last answers."""

    def __init__(self, port: int, on_healthy: Callable[[], None]) -> None:
        self._base = f"http://127.0.0.1:{port}"
        self._on_healthy = on_healthy
        self.healthy = False
        self.tokens = EngineTokens()

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as client:
            while True:
                try:
                    async with client.get(f"{self._base}/health") as answer:
                        self.healthy = answer.status == 200
                except (aiohttp.ClientError, TimeoutError):
                    self.healthy = False
                if self.healthy:
                    self._on_healthy()
                    await self.refresh(client)
                await asyncio.sleep(POLL_SECONDS if self.healthy else FIRST_SECONDS)

    async def refresh(self, client: aiohttp.ClientSession) -> None:
        """Reads the engine's counters now."""
        try:
            async with client.get(f"{self._base}/metrics") as answer:
                self.tokens = parse_tokens(await answer.text())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            log.debug("engine metrics: %s", error)
