"""LoRA adapters by their content.

vLLM's hash of a block names a request's adapter by name and path. At another replica, or after a reload, the same name
and path may hold other weights, and blocks of one would be taken for the other's. So in the engine's core process the
adapter's key gets a third part: a digest of its files. An adapter whose files can't be read here gets random bytes,
which no other replica has: its blocks are this engine's own, requests without adapter are shared as ever.

Relies on `kv_cache_utils._gen_lora_extra_hash_keys` and `EngineCore.add_lora`; a test holds both.
"""

import hashlib
import secrets
from pathlib import Path
from typing import Any

from kvpool_client.engine_vllm.configuration import digest_of_weights

_MARK = "_kvpool_adapters"
_contents: dict[tuple[int, str, str], str] = {}


def install() -> None:
    """Puts the content into the hashes of this process. Raises AttributeError where this engine has no such place."""
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.engine.core import EngineCore

    named, add = kv_cache_utils._gen_lora_extra_hash_keys, EngineCore.add_lora
    if getattr(named, _MARK, False):
        return

    def with_content(request: Any) -> list[Any]:
        keys = list(named(request))
        return [(*key, content_of(request.lora_request)) for key in keys] if request.lora_request else keys

    def add_lora(self: Any, lora_request: Any) -> Any:
        _contents.pop(_identity(lora_request), None)  # it may be loaded anew from changed files
        return add(self, lora_request)

    setattr(with_content, _MARK, True)
    kv_cache_utils._gen_lora_extra_hash_keys = with_content
    EngineCore.add_lora = add_lora


def content_of(lora_request: Any) -> str:
    """What tells this adapter from any other, read once for each load."""
    identity = _identity(lora_request)
    found = _contents.get(identity)
    if found is None:
        found = _contents.setdefault(identity, digest_of_adapter(Path(identity[2])) or secrets.token_hex(16))
    return found


def digest_of_adapter(folder: Path) -> str:
    """Hash of an adapter's configuration and weights; empty for what is no folder with both."""
    try:
        configuration = (folder / "adapter_config.json").read_bytes()
        weights = digest_of_weights(folder)
    except OSError:
        return ""
    return hashlib.blake2b(configuration + weights.encode(), digest_size=16).hexdigest() if weights else ""


def _identity(lora_request: Any) -> tuple[int, str, str]:
    return lora_request.lora_int_id, lora_request.lora_name, lora_request.lora_path
