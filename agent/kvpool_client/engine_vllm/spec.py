"""Our offloading spec: vLLM's tiering spec with blocks of a chosen size, and a worker for engines without a GPU.

The block size of an engine is final only here, so the number of engine blocks in one of ours is chosen here: the
largest whole number that stays within the configured tokens, at least one. For a model with recurrent states it is
one: the engine keeps a state at the end of a prompt's last whole block, wherever that is, and seldom at others.
"""

import dataclasses
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvpool_client.engine_vllm.configuration import BLOCK_TOKENS_FIELD, STATES_FIELD
from kvpool_client.engine_vllm.cpu_worker import CpuWorker


def blocks_per_chunk(engine_block_tokens: int, block_tokens: int) -> int:
    """Engine blocks in one of ours: the largest whole number within `block_tokens` tokens, at least 1."""
    return max(1, block_tokens // engine_block_tokens)


class KvpoolSpec(TieringOffloadingSpec):
    """Named in the connector's configuration (see configuration.connector)."""

    def __init__(self, config: Any) -> None:
        tokens = min(group.tokens_per_block for group in config.groups)
        states = bool(config.extra_config.get(STATES_FIELD))
        chosen = 1 if states else blocks_per_chunk(tokens, int(config.extra_config[BLOCK_TOKENS_FIELD]))
        cache = dataclasses.replace(config.cache, blocks_per_chunk=chosen)
        super().__init__(dataclasses.replace(config, cache=cache))
        self._cpu_worker: CpuWorker | None = None

    def get_worker(self, kv_caches: Any) -> Any:
        """The engine's own copy worker on a GPU; ours where the platform has none."""
        if current_platform.device_type != "cpu":
            return super().get_worker(kv_caches)
        if self._cpu_worker is None:
            self._cpu_worker = CpuWorker(kv_caches, self)
        return self._cpu_worker
