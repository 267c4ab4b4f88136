"""vLLM's own OffloadingConnector, with two things that it leaves out for models with several KV-cache groups, and time.

The spec and the tier below it see how many tokens a block of each group has, and not what its layers look at, how many
bytes they write, nor whose they are. Only the connector is given that; it travels on in the connector's extra
configuration, which the spec does see.

And of a window, the engine's device keeps the last blocks alone. Where those begin in the middle of one of our blocks,
the engine offers it all the same, with whatever lay in the rest of its row before; a request that goes on at an earlier
boundary would look at that. So a block of which the device holds a part is not stored at all, not in the host pool
either.

When requests begin and have their first token is seen here alone (kvpool_client.engine_vllm.prefills), and so are their
prompts, for the agent that wants to have one computed again (kvpool_client.samples).
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.kv_offload.base import LookupResult

from kvpool_client.engine_vllm.configuration import KINDS_FIELD, STATES_FIELD
from kvpool_client.engine_vllm.drafts import is_drafts
from kvpool_client.engine_vllm.prefills import Prefills
from kvpool_client.groups import FULL, STATE, WINDOW
from kvpool_client.timing import Timings

log = logging.getLogger("kvpool.client")

NOT_ON_DEVICE = 0  # the engine's number for a block that a window has left behind


class KvpoolConnector(OffloadingConnector):
    """Named in the connector's configuration (see configuration.connector)."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        plans = role == KVConnectorRole.SCHEDULER
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        extra[KINDS_FIELD] = [
            (*kind_and_window(group), bytes_written(group), is_drafts(group.layer_names, vllm_config))
            for group in kv_cache_config.kv_cache_groups
        ]
        if states := [
            state_of(group) for group in kv_cache_config.kv_cache_groups if kind_and_window(group)[0] == STATE
        ]:
            extra[STATES_FIELD] = [vllm_config.mamba_config.backend.name, *states]
        super().__init__(vllm_config, role, kv_cache_config)
        if plans and any(kind not in (FULL, STATE) for kind, *_ in extra[KINDS_FIELD]):
            store_whole_blocks_alone(self.connector_scheduler)
        self._tier = tier_of(self.connector_scheduler) if plans else None
        self._prefills = Prefills(self._tier.timings) if self._tier is not None else None

    def on_new_request(self, request: Any) -> None:
        super().on_new_request(request)
        if self._prefills is not None:
            self._prefills.new(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        if self._prefills is not None:
            self._prefills.looked_at(request, num_computed_tokens)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        if self._prefills is not None:
            self._prefills.scheduled(scheduler_output)
        return super().build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        if self._prefills is not None:
            self._prefills.results()
        super().update_connector_output(connector_output)

    def request_finished(self, request: Any, block_ids: Any) -> Any:
        self._show(request)
        return super().request_finished(request, block_ids)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        self._show(request)
        return super().request_finished_all_groups(request, block_ids)

    def _show(self, request: Any) -> None:
        try:
            samples = self._tier.samples if self._tier is not None else None
            if samples is not None and (tokens := plain_tokens(request)):
                samples.ended(request.request_id, tokens)
        except Exception:
            log.exception("kvpool: this engine's prompts can't be seen, so no hit is compared")
            self._tier = None


def tier_of(scheduler: Any) -> Any:
    """Our tier below the connector's scheduler; None where there is none, and where it is inert."""
    tiers = getattr(getattr(scheduler, "manager", None), "secondary_tiers", ())
    return next((tier for tier in tiers if isinstance(getattr(tier, "timings", None), Timings)), None)


def plain_tokens(request: Any) -> Sequence[int]:
    """The prompt of a request whose tokens alone name its blocks; none of one with a salt, an adapter, images or
    embeddings, which only whoever has those can ask for again."""
    if (
        request.cache_salt
        or request.lora_request is not None
        or request.mm_features
        or request.prompt_embeds is not None
    ):
        return ()
    tokens: Sequence[int] = request.prompt_token_ids or ()
    return tokens


def kind_and_window(group: Any) -> tuple[str, int]:
    """A group's kind, and the tokens that its window takes (0: all)."""
    spec = group.kv_cache_spec
    if isinstance(spec, FullAttentionSpec):
        return FULL, 0
    # in any other mode the engine keeps states elsewhere than at the ends of its blocks, or all of them
    if isinstance(spec, MambaSpec) and spec.mamba_cache_mode == "align":
        return STATE, 1
    # asked one block further than it is used, by methods that don't join (drafts.SHARED): never tried here
    if isinstance(spec, SlidingWindowSpec) and not group.is_eagle_group:
        return WINDOW, spec.sliding_window + spec.extra_retained_tokens
    return type(spec).__name__, 1


def state_of(group: Any) -> list[Any]:
    """What a group's states are, for the format: kind of layer, shapes and data types in the order of their bytes."""
    spec = group.kv_cache_spec
    dtypes = [str(dtype).removeprefix("torch.") for dtype in spec.dtypes]
    return [spec.mamba_type.name, [list(shape) for shape in spec.shapes], dtypes, spec.page_size_bytes]


def bytes_written(group: Any) -> int:
    """Bytes of one of the engine's blocks that the group's layers write on a worker; 0 where that can't be told."""
    page = getattr(group.kv_cache_spec, "unpadded_page_size_bytes", 0)
    return page * len(getattr(group, "layer_names", ())) if isinstance(page, int) else 0


def store_whole_blocks_alone(scheduler: Any) -> None:
    """Makes the engine's connector pass over blocks of which a part is not on the device. Where that can't be done,
    nothing is stored: the wrapped method is the engine's private one, of which a test per version tells."""
    build: Callable[[Any], Any] | None = getattr(scheduler, "_build_store_jobs", None)

    def build_whole(scheduled: Any) -> Any:
        if build is None:
            return {}
        try:
            for request in [*scheduled.num_scheduled_tokens, *(scheduled.finished_req_ids or ())]:
                pass_over_parts(scheduler, request)
        except Exception:
            log.exception("kvpool: the engine's stores can't be checked, so nothing is stored")
            return {}
        return build(scheduled)

    scheduler._build_store_jobs = build_whole


def pass_over_parts(scheduler: Any, request: str) -> None:
    """Takes the last of its device blocks from each block of ours that has gaps: the engine stores none without it.
    One that the host pool has is whole there, and is not copied again."""
    status = scheduler._req_status.get(request)
    if status is None:
        return
    size = scheduler.config.blocks_per_chunk
    for group, state in zip(scheduler.config.kv_group_configs, status.group_states, strict=True):
        if group.sliding_window_size_in_chunks is None or group.requires_cow_source:  # a state is its last block alone
            continue
        whole = min(len(state.block_ids) // size, len(state.offload_keys))
        for index in range(state.next_stored_chunk_idx, whole):
            blocks = state.block_ids[index * size : (index + 1) * size]
            if NOT_ON_DEVICE not in blocks or blocks[-1] == NOT_ON_DEVICE:
                continue
            found = scheduler.manager.primary_tier.lookup(state.offload_keys[index], status.req_context)
            if found is LookupResult.MISS:
                state.block_ids[(index + 1) * size - 1] = NOT_ON_DEVICE
