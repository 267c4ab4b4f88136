"""The weights epoch: which weights the engine has now, where they are no longer those that it started with.

vLLM tells its KV connector nothing when weights are updated in place, or dropped by a sleep of level 2. So the calls
that do it are wrapped in the core process. With each one the tier leaves the pool, and attaches again under another
format when the next request comes: with the caller's weight version where one is given after the update, else under a
name that no other engine has. The seed of the engine's hashes changes, too: nothing that its own caches hold from
before can be hit any more, and so none of it can be offered as the new weights' own.

Calls to workers by name are taken for updates unless they are known to be none: a false one costs sharing with others,
a missed one would give wrong answers. What changes weights without any of these calls is not seen.
"""

import contextlib
import hashlib
import weakref
from typing import Any, Protocol

_MARK = "_kvpool_epoch"
_SEED = "_kvpool_seed"
# calls of workers that leave the weights alone
_HARMLESS = frozenset(
    {
        "compute_weight_checksums",
        "get_model_inspection",
        "init_weight_transfer_engine",
        "shutdown_weight_transfer_engine",
        "update_max_model_len",
    }
)
SLEEP_THAT_DROPS_WEIGHTS = 2


class Tier(Protocol):
    """Told of a new epoch, on the engine's scheduler thread, between its steps."""

    def new_epoch(self, epoch: str) -> None: ...


_tiers: "weakref.WeakValueDictionary[str, Tier]" = weakref.WeakValueDictionary()
_changes: dict[str, tuple[int, str]] = {}  # by engine: updates so far, and the epoch that the last one began


def follow(engine_id: str, tier: Tier) -> None:
    """Tells the tier of this engine's updates. Raises AttributeError where this engine has not the calls."""
    _install()
    _tiers[engine_id] = tier
    _changes.pop(engine_id, None)


def _install() -> None:
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.engine.core import EngineCore

    call, version, sleep = EngineCore.collective_rpc, EngineCore.set_weight_version, EngineCore.sleep
    prepare, add = EngineCore.preprocess_add_request, EngineCore.add_request
    if getattr(call, _MARK, False):
        return

    def collective_rpc(self: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        name = method if isinstance(method, str) else getattr(method, "__name__", "")
        if name not in _HARMLESS:
            _begin(self)
        return call(self, method, *args, **kwargs)

    def set_weight_version(self: Any, weight_version: str) -> Any:
        done = version(self, weight_version)
        if _changes.get(_engine_id(self), (0, ""))[1]:  # the weights that it started with have their own name
            _begin(self, f"v:{weight_version}")
        return done

    def sleep_(self: Any, level: int = 1, *args: Any, **kwargs: Any) -> Any:
        if level >= SLEEP_THAT_DROPS_WEIGHTS:
            _begin(self)
        return sleep(self, level, *args, **kwargs)

    def preprocess_add_request(self: Any, request: Any) -> Any:
        seed = getattr(kv_cache_utils, "NONE_HASH", None)
        prepared = prepare(self, request)
        setattr(prepared[0], _SEED, seed)
        return prepared

    def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(request, _SEED, None) not in (None, kv_cache_utils.NONE_HASH):
            request.block_hashes.clear()  # hashed before the change, comes after it
            request.update_block_hashes()
        return add(self, request, *args, **kwargs)

    setattr(collective_rpc, _MARK, True)
    EngineCore.collective_rpc = collective_rpc
    EngineCore.set_weight_version = set_weight_version
    EngineCore.sleep = sleep_
    EngineCore.preprocess_add_request = preprocess_add_request
    EngineCore.add_request = add_request


def _begin(core: Any, named: str = "") -> None:
    """A new epoch, with the caller's name or one of its own. All ranks of an engine name it alike."""
    from vllm.v1.core import kv_cache_utils

    engine_id = _engine_id(core)
    tier = _tiers.get(engine_id)
    if tier is None:
        return
    count = _changes.get(engine_id, (0, ""))[0] + 1
    own = hashlib.blake2b(f"{engine_of(engine_id)} {count}".encode(), digest_size=16).hexdigest()
    epoch = named or own
    _changes[engine_id] = count, epoch
    kv_cache_utils.NONE_HASH = hashlib.sha256(f"kvpool {epoch}".encode()).digest()
    tier.new_epoch(epoch)


def _engine_id(core: Any) -> str:
    with contextlib.suppress(AttributeError):  # an engine without our connector
        return str(core.vllm_config.kv_transfer_config.engine_id)
    return ""


def engine_of(engine_id: str) -> str:
    """The engine that a data-parallel rank is one of: vLLM appends `_dp` and the rank."""
    head, mark, rank = engine_id.rpartition("_dp")
    return head if mark and rank.isdigit() else engine_id
