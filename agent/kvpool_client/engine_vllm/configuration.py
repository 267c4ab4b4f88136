"""The connector's configuration, and the fields of the format that only the engine's whole configuration knows.

The tier, built later in the engine's core process, sees a normalised extract alone; what it lacks is gathered here,
in the process that has it, and travels in the connector's own `kv_connector_extra_config`.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from kvpool_client.engine_vllm import drafts
from kvpool_client.settings import Settings

FORMAT_FIELD = "kvpool_format"
BLOCK_TOKENS_FIELD = "kvpool_block_tokens"
# written by our connector, which alone is given them
KINDS_FIELD, STATES_FIELD = "kvpool_group_kinds", "kvpool_states"
LEAST_BLOCKS = 8
# of each weights file: this many samples, evenly spaced from its first byte to its last
WEIGHT_SAMPLES, SAMPLE_BYTES = 64, 64 << 10
LARGEST_ENGINE_BLOCK = 256  # where the engine has not chosen its block size yet


def connector(chosen: Settings) -> Any:
    """A KVTransferConfig that puts our spec and tier in place."""
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector="KvpoolConnector",
        kv_connector_module_path="kvpool_client.engine_vllm.connector",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={
            "spec_name": "KvpoolSpec",
            "spec_module_path": "kvpool_client.engine_vllm.spec",
            "cpu_bytes_to_use": chosen.host_pool_bytes,
            "offload_prompt_only": not chosen.decode_output,
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
    """Adds the format's fields to the finished configuration; an obstacle, or None.

    What the engine's core would refuse later, where nothing can be built again without us, is refused here.
    """
    if obstacle := _unsupported(chosen, config):
        return obstacle
    extra = config.kv_transfer_config.kv_connector_extra_config
    extra["cpu_bytes_to_use"] = _bytes_of_a_rank(chosen, config)
    models = [config.model_config, *drafts.models(config)]
    identities = [identity_of_weights(model, config.load_config) for model in models]
    for model, identity in zip(models, identities, strict=True):
        if not identity:
            return "weights_unidentified", f"{model.model!r} is no folder and no snapshot of a registry"
    extra[FORMAT_FIELD] = format_fields(config, *identities)
    return None


def _unsupported(chosen: Settings, config: Any) -> tuple[str, str] | None:
    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    if getattr(parallel, "nnodes", 1) > 1 or parallel.distributed_executor_backend == "ray":
        return "multi_host", "each host would have a host pool of its own, of which the tier sees one"
    if model.attn_type not in ("decoder", "hybrid") or model.is_encoder_decoder:
        return "model_unsupported", f"attention type {model.attn_type}"
    if not cache.enable_prefix_caching:
        return "prefix_caching_off", "enable_prefix_caching is off"
    if not str(cache.prefix_caching_hash_algo).startswith("sha256"):
        return "hash_unsupported", f"prefix_caching_hash_algo is {cache.prefix_caching_hash_algo}"
    if method := drafts.unsupported(config):
        return "draft_unsupported", f"speculative method {method}"
    ranks, here = parallel.data_parallel_size, parallel.data_parallel_size_local
    if ranks > 1 and (here != ranks or parallel.data_parallel_backend == "ray"):
        return "data_parallel_unsupported", f"{here} of {ranks} data-parallel ranks are started by this process"
    shm = os.statvfs("/dev/shm")
    free = shm.f_bavail * shm.f_frsize
    if free < chosen.host_pool_bytes:
        return "no_shm_room", f"a host pool of {chosen.host_pool_bytes} bytes wanted, {free} free in /dev/shm"
    block_tokens = max(chosen.block_tokens, cache.block_size or LARGEST_ENGINE_BLOCK)
    needed = LEAST_BLOCKS * block_bytes(config, block_tokens)
    size = _bytes_of_a_rank(chosen, config)
    if size < needed:
        return "host_pool_too_small", f"{LEAST_BLOCKS} blocks take {needed} bytes, it has {size}"
    return None


def _bytes_of_a_rank(chosen: Settings, config: Any) -> int:
    """Each data-parallel rank has a host pool of its own; together they are what the pod's memory was given for."""
    return chosen.host_pool_bytes // max(1, int(config.parallel_config.data_parallel_size))


def block_bytes(config: Any, block_tokens: int) -> int:
    """Bytes of a block of all layers and ranks, by the shapes of the model and of the one that drafts for it: an
    estimate that is exact for models whose layers all keep keys and values per head, and too high for those that keep
    less."""
    ranks = config.parallel_config.tensor_parallel_size
    size = 0
    for model in (config.model_config, *drafts.models(config)):
        heads = model.get_total_num_kv_heads()
        size += int(
            2
            * model.get_total_num_hidden_layers()
            * heads
            * model.get_head_size()
            * getattr(model.dtype, "itemsize", 2)
            * block_tokens
            * max(1, ranks // max(heads, 1))
        )
    return size


def format_fields(config: Any, weights: str, draft_weights: str = "") -> dict[str, Any]:
    """The fields of the format known here; the tier adds those of its geometry. All are text or numbers."""
    import vllm
    from vllm.platforms import current_platform

    model = config.model_config
    backend = getattr(getattr(config, "attention_config", None), "backend", None)
    return {
        "engine": "vllm",
        "engine_version": ".".join(str(vllm.__version__).split(".")[:2]),
        "device": str(current_platform.device_type),
        "attention_backend": str(getattr(backend, "name", backend) or "auto"),
        "model": str(model.model),
        "revision": str(model.revision or ""),
        "model_config": digest_of_model_config(model.hf_config),
        "weights": weights,
        "weights_epoch": "",
        "quantization": str(model.quantization or ""),
        "max_model_len": int(model.max_model_len),
        "compute_dtype": str(model.dtype).removeprefix("torch."),
        "hash_algorithm": str(config.cache_config.prefix_caching_hash_algo),
        "adapters": "" if config.lora_config is None else "lora",
        "draft": " ".join(
            f"{config.speculative_config.method} {model.quantization or ''} {digest_of_model_config(model.hf_config)} "
            f"{draft_weights}"
            for model in drafts.models(config)
        ),
    }


def digest_of_model_config(hf_config: Any) -> str:
    """Hash of the model's configuration: architecture, attention and position parameters."""
    fields = {k: v for k, v in hf_config.to_dict().items() if k not in ("_name_or_path", "transformers_version")}
    return hashlib.blake2b(json.dumps(fields, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


def identity_of_weights(model: Any, load: Any) -> str:
    """What tells these weights from any others: for a folder a hash of samples of its files, for a name in a registry
    the commit of the snapshot that is loaded. Empty when there is neither. Weights that the engine makes up instead
    of reading them are another thing than the files."""
    folder = Path(str(model.model))
    if folder.is_dir():
        digest = digest_of_weights(folder)
        return f"dummy {digest}" if digest and load.load_format == "dummy" else digest
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(
        str(model.model), "config.json", cache_dir=load.download_dir, revision=model.revision or "main"
    )
    parts = Path(found).parts if isinstance(found, str) else ()
    if "snapshots" not in parts:
        return ""
    commit = f"commit {parts[parts.index('snapshots') + 1]}"
    return f"dummy {commit}" if load.load_format == "dummy" else commit


def digest_of_weights(folder: Path) -> str:
    """Hash of each weights file's name, size and evenly spaced samples; empty for a folder without such files. A hash
    of every byte would read the model twice at each start."""
    files = sorted(p for pattern in ("*.safetensors", "*.bin", "*.pt", "*.pth") for p in folder.glob(pattern))
    if not files:
        return ""
    digest = hashlib.blake2b(digest_size=16)
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as weights:
            last = max(0, size - SAMPLE_BYTES)
            for place in sorted({last * i // (WEIGHT_SAMPLES - 1) for i in range(WEIGHT_SAMPLES)}):
                weights.seek(place)
                digest.update(weights.read(SAMPLE_BYTES))
    return digest.hexdigest()
