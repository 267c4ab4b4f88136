"""Kinds of KV-cache groups, as our connector reads them off the engine's. The engine's classes are stand-ins here."""

import enum
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from kvpool_client.engine_vllm import geometry
from kvpool_client.groups import obstacle
from kvpool_client.samples import Samples, unpacked


class FullAttentionSpec:
    unpadded_page_size_bytes = 1024


class MLAAttentionSpec(FullAttentionSpec):
    pass


class MambaSpec:
    mamba_type = types.SimpleNamespace(name="GDN_ATTN")
    shapes = ((3, 192), (2, 32, 32))
    dtypes = ("torch.bfloat16", "torch.float32")
    page_size_bytes = 16384

    def __init__(self, mode: str = "align") -> None:
        self.mamba_cache_mode = mode


class SlidingWindowSpec:
    sliding_window = 160
    extra_retained_tokens = 2


class ChunkedLocalAttentionSpec:
    attention_chunk_size = 8192


class OffloadingConnector:
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self.seen = dict(vllm_config.kv_transfer_config.kv_connector_extra_config)
        self.connector_scheduler = Scheduler() if role == ROLE.SCHEDULER else None

    def request_finished(self, request: Any, block_ids: Any) -> Any:
        return request.request_id, block_ids

    request_finished_all_groups = request_finished


class Scheduler:
    """What the engine's connector keeps of its requests: blocks of two device blocks, in two groups."""

    def __init__(self) -> None:
        windows = (2, None)
        self.config = types.SimpleNamespace(
            blocks_per_chunk=2,
            kv_group_configs=[
                types.SimpleNamespace(sliding_window_size_in_chunks=window, requires_cow_source=False)
                for window in windows
            ],
        )
        self._req_status: dict[str, Any] = {}
        self.manager = types.SimpleNamespace(primary_tier=self)
        self.in_host_pool: set[str] = set()

    def lookup(self, key: str, context: Any) -> Any:
        return LookupResult.HIT if key in self.in_host_pool else LookupResult.MISS

    def request(self, name: str, *, stored: int, blocks: list[int]) -> Any:
        keys = [f"{name} {i}" for i in range(len(blocks) // 2)]
        states = [
            types.SimpleNamespace(next_stored_chunk_idx=stored, block_ids=list(blocks), offload_keys=keys)
            for _ in range(2)
        ]
        self._req_status[name] = types.SimpleNamespace(group_states=states, req_context=None)
        return states

    def _build_store_jobs(self, scheduled: Any) -> Any:
        return {"built": scheduled}


LookupResult = enum.Enum("LookupResult", "MISS HIT HIT_PENDING RETRY")
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
        "vllm.v1.kv_offload.base": {"LookupResult": LookupResult},
    }  # fmt: skip
    for name, content in modules.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "kvpool_client.engine_vllm.connector", raising=False)
    yield importlib.import_module("kvpool_client.engine_vllm.connector")
    sys.modules.pop("kvpool_client.engine_vllm.connector", None)


def group(spec: Any, *, draft: bool = False) -> Any:
    return types.SimpleNamespace(kv_cache_spec=spec, is_eagle_group=draft, layer_names=["a", "b"])


@pytest.mark.parametrize(
    ("found", "kind", "window", "reason"),
    [
        (group(FullAttentionSpec()), "full", 0, ""),
        (group(MLAAttentionSpec()), "full", 0, ""),
        (group(FullAttentionSpec(), draft=True), "full", 0, ""),
        (group(SlidingWindowSpec()), "window", 162, ""),
        (group(SlidingWindowSpec(), draft=True), "SlidingWindowSpec", 1, "groups_unsupported"),
        (group(ChunkedLocalAttentionSpec()), "ChunkedLocalAttentionSpec", 1, "groups_unsupported"),
        (group(MambaSpec()), "state", 1, ""),
        (group(MambaSpec("all")), "MambaSpec", 1, "groups_unsupported"),
    ],
)
def test_the_kind_and_window_of_a_group(connector: Any, found: Any, kind: str, window: int, reason: str) -> None:
    from kvpool_client.groups import Group, from_header, to_header

    assert connector.kind_and_window(found) == (kind, window)
    described = from_header(to_header([Group(0, kind, window, 128)]))
    assert obstacle(described) == reason


@pytest.mark.parametrize("role", [ROLE.SCHEDULER, ROLE.WORKER])
def test_the_spec_below_sees_the_kinds(connector: Any, role: str) -> None:
    config = types.SimpleNamespace(
        kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={"a": 1}), speculative_config=None
    )
    groups = types.SimpleNamespace(kv_cache_groups=[group(SlidingWindowSpec()), group(FullAttentionSpec())])
    made = connector.KvpoolConnector(config, role, kv_cache_config=groups)
    assert made.seen == {"a": 1, "kvpool_group_kinds": [("window", 162, 0, False), ("full", 0, 2048, False)]}


@pytest.mark.parametrize("role", [ROLE.SCHEDULER, ROLE.WORKER])
def test_what_states_are_is_part_of_the_format_and_a_block_of_such_a_model_is_one_of_the_engines(
    connector: Any, role: str
) -> None:
    config = types.SimpleNamespace(
        kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={}),
        speculative_config=None,
        mamba_config=types.SimpleNamespace(backend=types.SimpleNamespace(name="TRITON")),
    )
    groups = types.SimpleNamespace(kv_cache_groups=[group(MambaSpec()), group(FullAttentionSpec())])
    made = connector.KvpoolConnector(config, role, kv_cache_config=groups)
    states = ["TRITON", ["GDN_ATTN", [[3, 192], [2, 32, 32]], ["bfloat16", "float32"], 16384]]
    assert made.seen["kvpool_states"] == states
    assert "_build_store_jobs" not in vars(made.connector_scheduler or types.SimpleNamespace())


@pytest.mark.parametrize(
    ("written", "whole"),
    [
        pytest.param([4096, 2048], [True, False], id="one with fewer layers"),
        pytest.param([0, 2048], [False, False], id="none that fills a row"),
        pytest.param([0], [True], id="one alone"),
    ],
)
def test_a_group_whose_layers_write_all_of_a_block_is_whole(written: list[int], whole: list[bool]) -> None:
    kinds = [("full", 0, size, False) for size in written]
    groups = [types.SimpleNamespace(group_id=i, tokens_per_block=16) for i in range(len(written))]
    config = types.SimpleNamespace(
        groups=groups, extra_config={"kvpool_group_kinds": kinds}, worker_kv_bytes_per_block=4096
    )
    found = geometry.groups_of(types.SimpleNamespace(config=config, blocks_per_chunk=8))
    assert [(group.block_tokens, group.whole) for group in found] == [(128, one) for one in whole]


def test_a_state_is_never_compared_with_a_probe_whatever_it_fills() -> None:
    groups = [types.SimpleNamespace(group_id=0, tokens_per_block=16)]
    config = types.SimpleNamespace(
        groups=groups, extra_config={"kvpool_group_kinds": [("state", 1, 4096, False)]}, worker_kv_bytes_per_block=4096
    )
    (found,) = geometry.groups_of(types.SimpleNamespace(config=config, blocks_per_chunk=1))
    assert not found.whole


def step(*scheduled: str, finished: tuple[str, ...] = ()) -> Any:
    return types.SimpleNamespace(num_scheduled_tokens=dict.fromkeys(scheduled, 1), finished_req_ids=finished)


def scheduler_of(connector: Any) -> Any:
    config = types.SimpleNamespace(
        kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={}), speculative_config=None
    )
    groups = types.SimpleNamespace(kv_cache_groups=[group(SlidingWindowSpec()), group(FullAttentionSpec())])
    return connector.KvpoolConnector(config, ROLE.SCHEDULER, kv_cache_config=groups).connector_scheduler


def test_a_block_of_which_the_device_holds_a_part_is_passed_over(connector: Any) -> None:
    scheduler = scheduler_of(connector)
    window, full = scheduler.request("r", stored=0, blocks=[0, 0, 0, 5, 6, 7, 8])
    _, other = scheduler.request("waits", stored=0, blocks=[0, 5])
    done = scheduler.request("done", stored=1, blocks=[0, 5, 0, 6])[0]
    known = scheduler.request("known", stored=0, blocks=[0, 5])[0]
    scheduler.in_host_pool = {"known 0"}
    scheduled = step("r", "unknown", "known", finished=("done",))
    assert scheduler._build_store_jobs(scheduled) == {"built": scheduled}
    assert window.block_ids == [0, 0, 0, 0, 6, 7, 8]  # the last one is not whole yet
    assert full.block_ids == [0, 0, 0, 5, 6, 7, 8]
    assert other.block_ids == [0, 5]
    assert done.block_ids == [0, 5, 0, 0]  # what was stored already stays as it is
    assert known.block_ids == [0, 5]


def test_where_that_cannot_be_told_nothing_is_stored(connector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = scheduler_of(connector)
    del scheduler.config
    assert scheduler._build_store_jobs(step("r")) == {"built": step("r")}  # no request of that name
    scheduler._req_status["r"] = None
    scheduler._req_status["s"] = types.SimpleNamespace()
    assert scheduler._build_store_jobs(step("s")) == {}
    monkeypatch.delattr(Scheduler, "_build_store_jobs")
    assert scheduler_of(connector)._build_store_jobs(step("r")) == {}


def test_an_engine_with_full_attention_alone_is_left_as_it_is(connector: Any) -> None:
    config = types.SimpleNamespace(
        kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={}), speculative_config=None
    )
    groups = types.SimpleNamespace(kv_cache_groups=[group(FullAttentionSpec())])
    made = connector.KvpoolConnector(config, ROLE.SCHEDULER, kv_cache_config=groups)
    assert "_build_store_jobs" not in vars(made.connector_scheduler)


def test_the_prompt_of_a_request_that_ends_is_shown_where_its_tokens_alone_name_its_blocks(connector: Any) -> None:
    samples = Samples()
    config = types.SimpleNamespace(kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={}))
    made = connector.KvpoolConnector(config, ROLE.WORKER, types.SimpleNamespace(kv_cache_groups=[]))
    made._tier = types.SimpleNamespace(samples=samples)

    def shown(end: str, **change: Any) -> list[int]:
        plain = {"cache_salt": None, "lora_request": None, "mm_features": [], "prompt_embeds": None}
        request = types.SimpleNamespace(**{"request_id": "r", "prompt_token_ids": [7, 8, 9], **plain, **change})
        samples.want("r", 1, 2)
        assert getattr(made, end)(request, [3]) == ("r", [3])
        return unpacked(samples.take("r", 1))

    assert shown("request_finished") == shown("request_finished_all_groups") == [7, 8]
    other = [{"cache_salt": "s"}, {"lora_request": object()}, {"mm_features": [1]}, {"prompt_embeds": object()}]
    assert [shown("request_finished", **change) for change in other] == [[]] * 4
    assert shown("request_finished", prompt_token_ids=None) == []
    # an engine whose requests are made otherwise goes on, and shows nothing any more
    assert made.request_finished(types.SimpleNamespace(request_id="r"), [3]) == ("r", [3])
    assert shown("request_finished") == []
