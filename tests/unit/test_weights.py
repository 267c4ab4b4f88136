"""Adapters by content, and the calls that begin a new weights epoch. The engine's modules are stand-ins here."""

import itertools
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvpool_client.engine_vllm import adapters, epoch

SEED = b"as started"


class EngineCore:
    def __init__(self, engine_id: str | None = "e_dp1") -> None:
        transfer = types.SimpleNamespace(engine_id=engine_id) if engine_id else None
        self.vllm_config = types.SimpleNamespace(kv_transfer_config=transfer)
        self.calls: list[Any] = []

    def collective_rpc(self, method: Any, timeout: float | None = None, args: tuple[Any, ...] = ()) -> list[Any]:
        self.calls.append((method, args))
        return [1]

    def set_weight_version(self, weight_version: str) -> None:
        self.calls.append(weight_version)

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        self.calls.append((level, mode))

    def preprocess_add_request(self, request: Any) -> Any:
        request.update_block_hashes()
        return request, 7

    def add_request(self, request: Any, request_wave: int = 0) -> None:
        self.calls.append((request.block_hashes, request_wave))

    def add_lora(self, lora_request: Any) -> bool:
        self.calls.append(lora_request)
        return True


class Tier:
    def __init__(self) -> None:
        self.epochs: list[str] = []

    def new_epoch(self, epoch: str) -> None:
        self.epochs.append(epoch)


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """vLLM's module of hashes, beside an engine core of its own for this test."""
    for name in ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.kv_cache_utils", "vllm.v1.engine.core"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    module: Any = sys.modules["vllm.v1.core.kv_cache_utils"]
    module.NONE_HASH = SEED
    module._gen_lora_extra_hash_keys = lambda request: (
        [("lora", request.lora_request.lora_name, request.lora_request.lora_path)] if request.lora_request else []
    )
    sys.modules["vllm.v1.core"].kv_cache_utils = module  # type: ignore[attr-defined]
    core = type("EngineCore", (EngineCore,), {name: vars(EngineCore)[name] for name in vars(EngineCore)})
    sys.modules["vllm.v1.engine.core"].EngineCore = core  # type: ignore[attr-defined]
    yield module
    adapters._contents.clear()


@pytest.fixture
def core(hashes: Any) -> Any:
    return sys.modules["vllm.v1.engine.core"].EngineCore()


def update_weights() -> None:
    """A call of the workers that is no name."""


@pytest.mark.parametrize(
    ("call", "begins"),
    [
        (lambda core: core.collective_rpc("update_weights", None, (1,)), True),
        (lambda core: core.collective_rpc("reload_weights"), True),
        (lambda core: core.collective_rpc("finish_weight_update"), True),
        (lambda core: core.collective_rpc("my_workers_own_call"), True),
        (lambda core: core.collective_rpc(update_weights), True),
        (lambda core: core.sleep(2), True),
        (lambda core: core.sleep(level=2, mode="keep"), True),
        (lambda core: core.sleep(), False),
        (lambda core: core.sleep(1, "wait"), False),
        (lambda core: core.collective_rpc("compute_weight_checksums"), False),
        (lambda core: core.set_weight_version("step-0"), False),
    ],
)
def test_the_calls_that_change_weights_begin_an_epoch_and_all_go_through(
    core: Any, hashes: Any, call: Callable[[Any], Any], begins: bool
) -> None:
    tier = Tier()
    epoch.follow("e_dp1", tier)
    call(core)
    assert len(core.calls) == 1
    assert (len(tier.epochs), hashes.NONE_HASH != SEED) == (int(begins), begins)
    assert all(len(name) == 32 for name in tier.epochs)


def test_a_version_names_the_epoch_after_an_update_and_so_the_seed_of_all_that_have_it(core: Any, hashes: Any) -> None:
    tier, seeds = Tier(), []
    epoch.follow("e_dp1", tier)
    for version in ("1", "2", "1"):
        core.collective_rpc("update_weights")
        core.set_weight_version(version)
        seeds.append(hashes.NONE_HASH)
    assert tier.epochs[1::2] == ["v:1", "v:2", "v:1"]
    assert len(set(tier.epochs[0::2])) == 3, "an update without a version has a name of its own"
    assert seeds[0] == seeds[2] != seeds[1]


def test_all_ranks_of_one_engine_name_an_update_alike_and_no_other_engine_does(core: Any) -> None:
    tiers = {name: Tier() for name in ("e_dp0", "e_dp1", "f_dp0")}
    for name, tier in tiers.items():
        epoch.follow(name, tier)
        type(core)(name).collective_rpc("update_weights")
    assert tiers["e_dp0"].epochs == tiers["e_dp1"].epochs != tiers["f_dp0"].epochs
    assert [epoch.engine_of(name) for name in ("e_dp10", "e_dpx", "e", "_dp1_dp2")] == ["e", "e_dpx", "e", "_dp1"]


def test_an_engine_without_a_tier_of_ours_is_left_alone(core: Any, hashes: Any) -> None:
    epoch.follow("another", Tier())
    core.collective_rpc("update_weights")
    type(core)(None).collective_rpc("update_weights")
    assert hashes.NONE_HASH == SEED


class Request:
    """Hashed by the seed that holds when it is hashed."""

    def __init__(self, hashes: Any) -> None:
        self._hashes = hashes
        self.block_hashes: list[bytes] = []

    def update_block_hashes(self) -> None:
        self.block_hashes.append(self._hashes.NONE_HASH)


def test_a_request_that_was_hashed_before_an_update_and_comes_after_it_is_hashed_anew(core: Any, hashes: Any) -> None:
    tier = Tier()
    epoch.follow("e_dp1", tier)
    early, straggler = Request(hashes), Request(hashes)
    core.add_request(*core.preprocess_add_request(early))
    prepared = core.preprocess_add_request(straggler)
    core.collective_rpc("update_weights")
    core.add_request(*prepared)
    assert early.block_hashes == [SEED]
    assert straggler.block_hashes == [hashes.NONE_HASH] != [SEED]


def test_an_engine_without_the_calls_is_no_engine_to_follow(core: Any) -> None:
    for method in ("set_weight_version", "preprocess_add_request"):
        one: Any = sys.modules["vllm.v1.engine.core"]
        one.EngineCore = type("EngineCore", (), {k: v for k, v in vars(EngineCore).items() if k != method})
        with pytest.raises(AttributeError, match=method):
            epoch.follow("e", Tier())


def adapter(folder: Path, weights: bytes = b"w", configuration: str = "{}") -> str:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "adapter_config.json").write_text(configuration)
    return str(folder)


def lora(path: str, number: int = 1, *, anew: bool = False) -> Any:
    """anew: loaded in place of what workers have."""
    return types.SimpleNamespace(lora_name="name", lora_int_id=number, lora_path=path, load_inplace=anew)


NUMBERS = itertools.count()


def keys_of(hashes: Any, lora_request: Any, request_id: str = "", hashed: int = 0) -> list[Any]:
    """Of a request that has so many blocks already; without an id, of a new one."""
    request = types.SimpleNamespace(
        lora_request=lora_request, request_id=request_id or f"r{next(NUMBERS)}", block_hashes=[b""] * hashed
    )
    return list(hashes._gen_lora_extra_hash_keys(request))


def test_an_adapters_content_is_in_the_hash_and_a_request_without_one_has_nothing_more(
    core: Any, hashes: Any, tmp_path: Path
) -> None:
    adapters.install()
    path = adapter(tmp_path / "one")
    ((*named, content),) = keys_of(hashes, lora(path))
    assert named == ["lora", "name", path]
    assert len(content) == 32
    assert keys_of(hashes, None) == []
    for changed in ({"weights": b"x"}, {"configuration": '{"r": 8}'}):
        adapter(tmp_path / "one", **changed)
        assert core.add_lora(lora(path, anew=True))
        assert keys_of(hashes, lora(path))[0][3] not in ("", content)
        adapter(tmp_path / "one")
        core.add_lora(lora(path, anew=True))
        assert keys_of(hashes, lora(path)) == [("lora", "name", path, content)]


def test_an_adapter_whose_files_change_under_the_engine_is_shared_no_more_until_it_is_loaded_anew(
    core: Any, hashes: Any, tmp_path: Path
) -> None:
    """Which of the two a worker has is not known: one that let it go loads it anew without a word."""
    adapters.install()
    path = adapter(tmp_path / "one")
    content = keys_of(hashes, lora(path))[0][3]
    other = adapters.digest_of_adapter(Path(adapter(tmp_path / "two", weights=b"x")))

    adapter(tmp_path / "one")  # written anew as it was, as a volume does that is mounted again
    os.utime(tmp_path / "one" / "adapter_config.json", ns=(1, 1))
    assert keys_of(hashes, lora(path), "running")[0][3] == content

    adapter(tmp_path / "one", weights=b"x")
    alone = keys_of(hashes, lora(path), "running", hashed=1)[0][3]
    assert alone not in (content, other)
    assert keys_of(hashes, lora(path))[0][3] == alone, "its blocks are found again by this engine"
    assert core.add_lora(lora(path))
    assert keys_of(hashes, lora(path))[0][3] == alone, "workers that have it have not looked at its files"
    assert keys_of(hashes, lora(path), "running", hashed=2)[0][3] == alone
    assert core.add_lora(lora(path, anew=True))
    assert keys_of(hashes, lora(path), "running", hashed=2)[0][3] == other
    assert keys_of(hashes, lora(path))[0][3] == other


def test_files_that_change_between_the_load_and_the_first_request_are_not_what_was_loaded(
    core: Any, hashes: Any, tmp_path: Path
) -> None:
    adapters.install()
    path = adapter(tmp_path / "one")
    content = adapters.digest_of_adapter(Path(path))
    os.utime(tmp_path / "one" / "adapter_config.json", ns=(1, 1))
    assert core.add_lora(lora(path))
    adapter(tmp_path / "one", weights=b"x")
    other = adapters.digest_of_adapter(Path(path))
    assert keys_of(hashes, lora(path))[0][3] not in (content, other)


def test_the_files_of_an_adapter_are_looked_at_once_for_blocks_that_are_hashed_together(
    hashes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters.install()
    path = adapter(tmp_path / "one")
    looks: list[Path] = []
    state_of = adapters._state_of
    monkeypatch.setattr(adapters, "_state_of", lambda folder: looks.append(folder) or state_of(folder))  # type: ignore[func-returns-value]
    assert len({keys_of(hashes, lora(path), name)[0][3] for name in ("a", "a", "a", "b")}) == 1
    assert len(looks) == 2


def test_an_adapter_whose_files_cannot_be_read_is_like_no_other(core: Any, hashes: Any, tmp_path: Path) -> None:
    adapters.install()
    (tmp_path / "empty").mkdir()
    for path in ("a/name/in/a/registry", str(tmp_path / "empty")):
        first, second = (keys_of(hashes, lora(path, number))[0][3] for number in (1, 2))
        assert first != second
        assert keys_of(hashes, lora(path))[0][3] == first
