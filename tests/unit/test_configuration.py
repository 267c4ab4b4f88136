"""What of the engine's options is in the format, and what keeps an engine from joining. Its configuration is faked."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from kvpool_client.engine_vllm import configuration
from kvpool_client.engine_vllm.drafts import is_drafts
from kvpool_client.settings import Settings

SOMETHING = types.SimpleNamespace()  # prints the same in every process


def folder(path: Path, content: bytes = b"weights") -> str:
    path.mkdir(exist_ok=True)
    (path / "model.safetensors").write_bytes(content)
    return str(path)


def identity(model: str, load_format: str) -> str:
    load = types.SimpleNamespace(load_format=load_format, download_dir=None)
    return configuration.identity_of_weights(types.SimpleNamespace(model=model, revision=None), load)


def test_weights_that_the_engine_makes_up_are_not_those_of_the_files(tmp_path: Path) -> None:
    model = folder(tmp_path / "m")
    read, made_up = (identity(model, load) for load in ("auto", "dummy"))
    assert len(read) == 32
    assert made_up == f"dummy {read}"
    (tmp_path / "empty").mkdir()
    assert identity(str(tmp_path / "empty"), "dummy") == ""


@pytest.mark.parametrize("asked", [False, True])
def test_the_engine_hands_over_what_it_generates_only_where_it_is_asked_to(
    monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    vllm = types.ModuleType("vllm.config")
    vllm.KVTransferConfig = types.SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.config", vllm)
    made = configuration.connector(Settings("/s", 1 << 30, decode_output=asked))
    assert made.kv_connector_extra_config["offload_prompt_only"] is not asked


def engine(**changes: Any) -> Any:
    """A configuration that joins, but for the changes: `model.attn_type` for example."""
    made = types.SimpleNamespace(
        model=types.SimpleNamespace(
            attn_type="decoder",
            is_encoder_decoder=False,
            dtype=types.SimpleNamespace(itemsize=2),
            get_total_num_kv_heads=lambda: 2,
            get_total_num_hidden_layers=lambda: 2,
            get_head_size=lambda: 8,
        ),
        parallel=types.SimpleNamespace(
            nnodes=1,
            distributed_executor_backend="mp",
            data_parallel_size=1,
            tensor_parallel_size=1,
            data_parallel_size_local=1,
            data_parallel_backend="mp",
        ),
        cache=types.SimpleNamespace(enable_prefix_caching=True, prefix_caching_hash_algo="sha256", block_size=32),
        lora_config=None,
        weight_transfer_config=None,
        speculative_config=None,
        load_config=None,
    )
    for path, value in changes.items():
        *parents, name = path.split("__")
        target = made
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, name, value)
    for part in ("model", "parallel", "cache"):
        setattr(made, f"{part}_config", getattr(made, part))
    return made


def drafting(method: str, layers: int) -> Any:
    model = types.SimpleNamespace(
        dtype=types.SimpleNamespace(itemsize=2),
        get_total_num_hidden_layers=lambda: layers,
        get_total_num_kv_heads=lambda: 2,
        get_head_size=lambda: 8,
    )
    return types.SimpleNamespace(method=method, draft_model_config=model)


THREE_RANKS = 3 * 8 * 2 * 2 * 2 * 8 * 2 * 256  # bytes of three host pools of 8 blocks of the model above
RANKS = {"parallel__data_parallel_size": 2, "parallel__data_parallel_size_local": 2}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"lora_config": SOMETHING}, None),
        ({"weight_transfer_config": SOMETHING}, None),
        ({"speculative_config": types.SimpleNamespace(method="ngram")}, None),
        ({"speculative_config": types.SimpleNamespace(method="suffix")}, None),
        ({"speculative_config": types.SimpleNamespace(method="mtp")}, "draft_unsupported"),
        ({"speculative_config": drafting("eagle3", layers=4)}, None),
        ({"speculative_config": drafting("draft_model", layers=5)}, "host_pool_too_small"),
        ({"cache__enable_prefix_caching": False}, "prefix_caching_off"),
        ({"cache__prefix_caching_hash_algo": "xxhash"}, "hash_unsupported"),
        ({"model__attn_type": "encoder_only"}, "model_unsupported"),
        ({"model__is_encoder_decoder": True}, "model_unsupported"),
        ({"parallel__nnodes": 2}, "multi_host"),
        ({"parallel__distributed_executor_backend": "ray"}, "multi_host"),
        ({"parallel__data_parallel_size": 2}, "data_parallel_unsupported"),
        (RANKS, None),
        ({**RANKS, "parallel__data_parallel_backend": "ray"}, "data_parallel_unsupported"),
        ({**RANKS, "parallel__data_parallel_size": 4, "parallel__data_parallel_size_local": 4}, "host_pool_too_small"),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else value,
)
def test_what_keeps_an_engine_from_joining(change: dict[str, Any], reason: str | None) -> None:
    obstacle = configuration._unsupported(Settings("/run/s", THREE_RANKS), engine(**change))
    assert (obstacle[0] if obstacle else None) == reason


def test_the_ranks_of_an_engine_share_the_bytes_of_the_host_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "identity_of_weights", lambda *_: "weights")
    monkeypatch.setattr(configuration, "format_fields", lambda *_: {})
    for change, size in (({}, THREE_RANKS), (RANKS, THREE_RANKS // 2)):
        config = engine(**change, kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={}))
        assert configuration.complete(Settings("/run/s", THREE_RANKS), config) is None
        assert config.kv_transfer_config.kv_connector_extra_config["cpu_bytes_to_use"] == size


@pytest.mark.parametrize(
    ("method", "layers", "drafts"),
    [
        ("draft_model", ["draft_model.model.layers.0.self_attn.attn"], True),
        ("draft_model", ["model.layers.1.self_attn.attn", "draft_model.model.layers.0.self_attn.attn"], False),
        ("eagle", ["model.layers.2.self_attn.attn"], True),  # the model has two
        ("eagle", ["model.layers.1.self_attn.attn"], False),
        ("ngram", ["model.layers.2.self_attn.attn"], False),
    ],
)
def test_a_group_is_a_drafts_when_all_its_layers_are(method: str, layers: list[str], drafts: bool) -> None:
    assert is_drafts(layers, engine(speculative_config=drafting(method, layers=2))) is drafts
