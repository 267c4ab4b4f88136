"""The connector's configuration, and the fields of the format that only the engine's whole configuration knows.

The tier, built later in the engine's core process, sees a normalised extract alone; what it lacks is gathered here,
in the process that has it, and travels in the connector's own `kv_connector_extra_config`.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from kvpool_client.settings import Settings

FORMAT_FIELD = "kvpool_format"
BLOCK_TOKENS_FIELD = "kvpool_block_tokens"
LEAST_BLOCKS = 8
_EDGE_BYTES = 64 << 10


def connector(chosen: Settings) -> Any:
    """A KVTransferConfig that puts our spec and tier in place."""
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={
            "spec_name": "KvpoolSpec",
            "spec_module_path": "kvpool_client.engine_vllm.spec",
            "cpu_bytes_to_use": chosen.host_pool_bytes,
            BLOCK_TOKENS_FIELD: chosen.block_tokens,
            "secondary_tiers": [
                {
                    "type": "KvpoolTier",
                    "module_path": "kvpool_client.engine_vllm.tier",
                    "socket": chosen.socket,
                }
            ],
        },
    )


def complete(chosen: Settings, config: Any) -> tuple[str, str] | None:
    """Adds the format's fields to the finished configuration; an obstacle, or None."""
    config.kv_transfer_config.kv_connector_extra_config[FORMAT_FIELD] = format_fields(config)
    parallel = config.parallel_config
    if getattr(parallel, "nnodes", 1) > 1 or parallel.distributed_executor_backend == "ray":
        return "multi_host", "each host would have a host pool of its own, of which the tier sees one"
    needed = LEAST_BLOCKS * block_bytes(config, chosen.block_tokens)
    if chosen.host_pool_bytes < needed:
        return (
            "host_pool_too_small",
            f"{LEAST_BLOCKS} blocks take {needed} bytes, it has {chosen.host_pool_bytes}",
        )
    return None


def block_bytes(config: Any, block_tokens: int) -> int:
    """Bytes of a block of all layers and ranks, by the model's shape: an estimate that is exact for models whose
    layers all keep keys and values per head, and too high for those that keep less."""
    model, parallel = config.model_config, config.parallel_config
    dtype_bytes = getattr(model.dtype, "itemsize", 2)
    heads = model.get_total_num_kv_heads()
    return int(
        2
        * model.get_total_num_hidden_layers()
        * heads
        * model.get_head_size()
        * dtype_bytes
        * block_tokens
        * max(1, parallel.tensor_parallel_size // max(heads, 1))
    )


def format_fields(config: Any) -> dict[str, Any]:
    """The fields of the format known here; the tier adds those of its geometry. All are text or numbers."""
    import vllm
    from vllm.platforms import current_platform

    model = config.model_config
    backend = getattr(getattr(config, "attention_config", None), "backend", None)
    speculative = config.speculative_config
    return {
        "engine": "vllm",
        "engine_version": ".".join(str(vllm.__version__).split(".")[:2]),
        "device": str(current_platform.device_type),
        "attention_backend": str(getattr(backend, "name", backend) or "auto"),
        "model": str(model.model),
        "revision": str(model.revision or ""),
        "model_config": digest_of_model_config(model.hf_config),
        "weights": digest_of_weights(str(model.model)),
        "weights_epoch": "",
        "quantization": str(model.quantization or ""),
        "max_model_len": int(model.max_model_len),
        "compute_dtype": str(model.dtype).removeprefix("torch."),
        "hash_algorithm": str(config.cache_config.prefix_caching_hash_algo),
        "draft_model": "" if speculative is None else str(getattr(speculative, "model", "") or speculative.method),
    }


def digest_of_model_config(hf_config: Any) -> str:
    """Hash of the model's configuration: architecture, attention and position parameters."""
    fields = {k: v for k, v in hf_config.to_dict().items() if k not in ("_name_or_path", "transformers_version")}
    return hashlib.blake2b(json.dumps(fields, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


def digest_of_weights(model: str) -> str:
    """For a model in a folder: hash of each weights file's name, size, first and last 64 KiB. Empty for a name in
    a registry, where the revision says it. A full hash would read every byte again at each start."""
    folder = Path(model)
    if not folder.is_dir():
        return ""
    digest = hashlib.blake2b(digest_size=16)
    files = sorted(p for pattern in ("*.safetensors", "*.bin", "*.pt") for p in folder.glob(pattern))
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as weights:
            digest.update(weights.read(_EDGE_BYTES))
            weights.seek(max(0, size - _EDGE_BYTES))
            digest.update(weights.read(_EDGE_BYTES))
    return digest.hexdigest()
