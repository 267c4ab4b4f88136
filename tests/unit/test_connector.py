"""Kinds of KV-cache groups, as our connector reads them off the engine's. The engine's classes are stand-ins here."""

import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from kvpool_client.groups import obstacle


class FullAttentionSpec:
    pass


class MLAAttentionSpec(FullAttentionSpec):
    pass


class MambaSpec:
    pass


class SlidingWindowSpec:
    sliding_window = 160
    extra_retained_tokens = 2


class ChunkedLocalAttentionSpec:
    attention_chunk_size = 8192


class OffloadingConnector:
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self.seen = dict(vllm_config.kv_transfer_config.kv_connector_extra_config)


ROLE = types.SimpleNamespace(SCHEDULER="scheduler", WORKER="worker")


@pytest.fixture
def connector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    base = "vllm.distributed.kv_transfer.kv_connector.v1"
    modules = {
        base: {"KVConnectorRole": ROLE},
        f"{base}.offloading_connector": {"OffloadingConnector": OffloadingConnector},
        "vllm.v1.kv_cache_interface": {
            "FullAttentionSpec": FullAttentionSpec, "MambaSpec": MambaSpec, "SlidingWindowSpec": SlidingWindowSpec
        },
    }  # fmt: skip
    for name, content in modules.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "kvpool_client.engine_vllm.connector", raising=False)
    yield importlib.import_module("kvpool_client.engine_vllm.connector")
    sys.modules.pop("kvpool_client.engine_vllm.connector", None)


def group(spec: Any, *, draft: bool = False) -> Any:
    return types.SimpleNamespace(kv_cache_spec=spec, is_eagle_group=draft)


@pytest.mark.parametrize(
    ("found", "kind", "window", "reason"),
    [
        (group(FullAttentionSpec()), "full", 0, ""),
        (group(MLAAttentionSpec()), "full", 0, ""),
        (group(FullAttentionSpec(), draft=True), "full", 0, ""),
        (group(SlidingWindowSpec()), "window", 162, ""),
        (group(SlidingWindowSpec(), draft=True), "SlidingWindowSpec", 1, "groups_unsupported"),
        (group(ChunkedLocalAttentionSpec()), "ChunkedLocalAttentionSpec", 1, "groups_unsupported"),
        (group(MambaSpec()), "state", 1, "state_groups_unsupported"),
    ],
)
def test_the_kind_and_window_of_a_group(connector: Any, found: Any, kind: str, window: int, reason: str) -> None:
    from kvpool_client.groups import Group, from_header, to_header

    assert connector.kind_and_window(found) == (kind, window)
    described = from_header(to_header([Group(0, kind, window, 128)]))
    assert obstacle(described) == reason


@pytest.mark.parametrize("role", [ROLE.SCHEDULER, ROLE.WORKER])
def test_the_spec_below_sees_the_kinds_in_the_process_that_plans(connector: Any, role: str) -> None:
    config = types.SimpleNamespace(kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={"a": 1}))
    groups = types.SimpleNamespace(kv_cache_groups=[group(SlidingWindowSpec()), group(FullAttentionSpec())])
    made = connector.KvpoolConnector(config, role, kv_cache_config=groups)
    kinds = {"kvpool_group_kinds": [("window", 162), ("full", 0)]} if role == ROLE.SCHEDULER else {}
    assert made.seen == {"a": 1, **kinds}
