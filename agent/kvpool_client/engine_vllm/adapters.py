"""LoRA adapters by their content.

vLLM's hash of a block names a request's adapter by name and path. At another replica, or after a reload, the same name
and path may hold other weights, and blocks of one would be taken for the other's. So in the engine's core process the
adapter's key gets a third part: a digest of its files. An adapter whose files can't be read here gets random bytes,
which no other replica has: its blocks are this engine's own, requests without adapter are shared as ever. So does one
whose files have changed since they were read: a worker that has let it go loads it from them anew, without a word.

Relies on `kv_cache_utils._gen_lora_extra_hash_keys` and `EngineCore.add_lora`; a test holds both.
"""

import hashlib
import logging
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvpool_client.engine_vllm.configuration import digest_of_weights

log = logging.getLogger("kvpool")

_MARK = "_kvpool_adapters"
Identity = tuple[int, str, str]
Hashing = tuple[str, int, Identity]  # a request, how many of its blocks had been hashed before, and its adapter


@dataclass(frozen=True)
class _Content:
    """What an adapter is told by, since its files were in this state; `of`: their digest, empty where there is none."""

    told_by: str
    files: tuple[tuple[str, int, int, int], ...]
    of: str


_contents: dict[Identity, _Content] = {}
_NOTHING: Hashing = ("", 0, (0, "", ""))
_looked: tuple[Hashing, str] = (_NOTHING, "")  # for which blocks the files were looked at last, and what tells those


def install() -> None:
    """Puts the content into the hashes of this process. Raises AttributeError where this engine has no such place."""
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.engine.core import EngineCore

    named, add = kv_cache_utils._gen_lora_extra_hash_keys, EngineCore.add_lora
    if getattr(named, _MARK, False):
        return

    def with_content(request: Any) -> list[Any]:
        keys = list(named(request))
        return [(*key, _content_for(request)) for key in keys] if request.lora_request else keys

    def add_lora(self: Any, lora_request: Any) -> Any:
        global _looked
        if getattr(lora_request, "load_inplace", False):  # else workers that have it go on with what they have
            _contents.pop(_identity(lora_request), None)
            _looked = _NOTHING, ""
        content_of(lora_request)  # of the files that are loaded now, not of those that lie there when a request comes
        return add(self, lora_request)

    setattr(with_content, _MARK, True)
    kv_cache_utils._gen_lora_extra_hash_keys = with_content
    EngineCore.add_lora = add_lora


def _content_for(request: Any) -> str:
    """Asked for each block; the files are looked at once for those that are hashed together, and anew for the next ones
    of a request that runs: an adapter that was loaded in place is read again by the workers in each step."""
    global _looked
    now = request.request_id, len(request.block_hashes), _identity(request.lora_request)
    last, told_by = _looked
    if last != now:
        told_by = content_of(request.lora_request)
        _looked = now, told_by
    return told_by


def content_of(lora_request: Any) -> str:
    """What tells this adapter, as the workers have it, from any other."""
    identity = _identity(lora_request)
    folder = Path(identity[2])
    files, known = _state_of(folder), _contents.get(identity)
    if known is None or known.files != files:
        digest = digest_of_adapter(folder)
        if known is None:
            told_by = digest or secrets.token_hex(16)
        elif digest == known.of:
            told_by = known.told_by
        else:
            log.warning("kvpool: adapter %s: %s has changed; until it is loaded anew it is not shared", *identity[1:])
            told_by = secrets.token_hex(16)
        known = _contents[identity] = _Content(told_by, files, digest)
    return known.told_by


def _state_of(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Of each file what changes with it; empty for what is no folder."""
    try:
        found = [(entry.name, entry.stat()) for entry in os.scandir(folder)]
    except OSError:
        return ()
    return tuple(sorted((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in found))


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
