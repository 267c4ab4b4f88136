"""vLLM's own OffloadingConnector, which also passes on what kinds of KV-cache groups the model has.

The spec and the tier below it see how many tokens a block of each group has, and not what its layers look at. Only the
connector is given that; it travels on in the connector's extra configuration, which the spec does see.
"""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

from kvpool_client.engine_vllm.configuration import KINDS_FIELD
from kvpool_client.groups import FULL, STATE, WINDOW


class KvpoolConnector(OffloadingConnector):
    """Named in the connector's configuration (see configuration.connector)."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        if role == KVConnectorRole.SCHEDULER:
            extra = vllm_config.kv_transfer_config.kv_connector_extra_config
            extra[KINDS_FIELD] = [kind_and_window(group) for group in kv_cache_config.kv_cache_groups]
        super().__init__(vllm_config, role, kv_cache_config)


def kind_and_window(group: Any) -> tuple[str, int]:
    """A group's kind, and the tokens that its window takes (0: all)."""
    spec = group.kv_cache_spec
    if isinstance(spec, FullAttentionSpec):
        return FULL, 0
    if isinstance(spec, MambaSpec):
        return STATE, 1
    # a draft model's window is asked one block further than it is used: never tried here
    if isinstance(spec, SlidingWindowSpec) and not group.is_eagle_group:
        return WINDOW, spec.sliding_window + spec.extra_retained_tokens
    return type(spec).__name__, 1
