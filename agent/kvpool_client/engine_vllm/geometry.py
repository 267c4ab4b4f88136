"""What the tier knows of the engine's memory: the host pool, and the format's fields that only the core process has.

Relies on attributes of vLLM's spec that are not documented (`_scheduler_mmap` and its `fd` and `mmap_path`); the
suite runs against each tested version.
"""

import contextlib
from pathlib import Path
from typing import Any

from kvpool_client.engine_vllm.configuration import FORMAT_FIELD, KINDS_FIELD, STATES_FIELD
from kvpool_client.engine_vllm.epoch import engine_of
from kvpool_client.engine_vllm.requests import MARK_FIELD
from kvpool_client.groups import STATE, Group, to_header
from kvpool_client.memory import address_of, reopen_read_only
from kvpool_client.scheduler_side import HostPool

HASH_BYTES = 32  # the engine's hash of a block: SHA-256


def host_pool(spec: Any, view: memoryview) -> HostPool:
    """The engine's host pool. Its name is removed: every rank has mapped it by now, and a name that stays behind
    after a kill would take the room of the next start."""
    region = spec._scheduler_mmap
    descriptor = reopen_read_only(region.fd)
    with contextlib.suppress(FileNotFoundError):
        Path(region.mmap_path).unlink()
    rows, row_bytes = view.shape or (0, 0)
    return HostPool(rows, row_bytes, address_of(view.cast("B")), descriptor)


def groups_of(spec: Any) -> list[Group]:
    """The model's KV-cache groups, in the order of the engine's configuration."""
    kinds: list[tuple[str, int, int, bool]] = spec.config.extra_config[KINDS_FIELD]
    groups = []
    for group in spec.config.groups:
        kind, window, written, draft = kinds[group.group_id]
        # what no block of a single group writes is the same in every row; the numbers of a state are of other types
        whole = kind != STATE and (len(spec.config.groups) == 1 or written == spec.config.worker_kv_bytes_per_block)
        tokens = group.tokens_per_block * spec.blocks_per_chunk
        groups.append(Group(group.group_id, kind, window, tokens, whole, draft))
    return groups


def attach_header(spec: Any, pool: HostPool) -> dict[str, Any]:
    """The attach verb's fields: format, geometry, and what the agent decides by."""
    return {
        "format": format_fields(spec, pool.row_bytes),
        # which start of an engine this is; its data-parallel ranks are one
        "engine": engine_of(str(spec.config.engine_id)),
        "row_bytes": pool.row_bytes,
        "rows": pool.rows,
        "hash_bytes": HASH_BYTES,
        "groups": to_header(groups_of(spec)),
        "cache_namespaces": bool(spec.config.extra_config.get(MARK_FIELD)),
    }


def with_epoch(header: dict[str, Any], epoch: str) -> dict[str, Any]:
    """The attach verb's fields after an update of the weights. To the agent it is another engine, which has to show
    anew what it computes."""
    return {
        **header,
        "format": {**header["format"], "weights_epoch": epoch},
        "engine": f"{header['engine']} {epoch}",
    }


def format_fields(spec: Any, row_bytes: int) -> dict[str, Any]:
    """All fields of the format: those gathered with the engine's configuration and those of its memory."""
    config = spec.config
    parallel, gathered = config.parallel, config.extra_config[FORMAT_FIELD]
    return {
        **gathered,
        "kv_dtype": config.model.dtype,
        "layout": str(config.kv_cache_layout or ""),
        "block_tokens": spec.blocks_per_chunk * min(group.tokens_per_block for group in config.groups),
        "engine_block_tokens": [group.tokens_per_block for group in config.groups],
        "tokens_per_hash": config.cache.tokens_per_hash,
        "row_bytes": row_bytes,
        "bytes_per_engine_block": config.worker_kv_bytes_per_block,
        "groups": [list(group.layer_names) for group in config.groups],
        "parallel": {
            "world": parallel.world_size,
            "tensor": parallel.tp_size,
            "pipeline": parallel.pp_size,
            "prefill_context": parallel.pcp_size,
            "decode_context": parallel.dcp_size,
        },
        **({"states": states} if (states := config.extra_config.get(STATES_FIELD)) else {}),
        "replicated_layout": bool(spec.replicated_layout),
        "canonical_layout": bool(config.canonical_layout),
        "hash_seed": hash_seed(gathered["hash_algorithm"]).hex(),
    }


def hash_seed(algorithm: str) -> bytes:
    """What the engine chains a prompt's first hash to. It keeps it itself only when the tier has been made, so it is
    made here as the engine makes it; empty where that has no such function."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils

    seed_of = getattr(kv_cache_utils, "resolve_none_hash_seed", None)
    digest = get_hash_fn_by_name(algorithm)
    return bytes(digest(seed_of(digest))) if seed_of is not None else b""
