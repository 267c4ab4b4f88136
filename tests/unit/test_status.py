"""The status document: read as written, by this version alone; metrics and the engine's own counters beside it."""

import json
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest

from kvpool_agent.account import EVENTS_KEPT, Account
from kvpool_agent.observe.engine import parse_tokens
from kvpool_agent.observe.metrics import registry
from kvpool_contract import status as contract
from kvpool_contract.canary import Canary
from kvpool_contract.status import (
    PLACES,
    AgentStatus,
    EngineTokens,
    Hits,
    StatusError,
    Transfer,
    decode_status,
    encode_status,
)


def full(**change: Any) -> AgentStatus:
    fields: dict[str, Any] = {
        "version": 1,
        "pool": "chat",
        "member": "uid-a",
        "incarnation": "0f",
        "state": "Ready(degraded)",
        "reason": "nothing_to_warm",
        "attached": True,
        "attaches": 2,
        "engine_healthy": True,
        "format": "ab" * 16,
        "format_fields": {"engine": "vllm", "groups": [["layer.0"]]},
        "arena": contract.Arena(1 << 30, 8192, 2, 1, 5, 6, contract.Capacity(21, 22, 23, 24, 25, 26, 27, 28)),
        "warm": contract.Warm(10, 9, 36864, 2.0, 18432.0, 20000.0, 0.5),
        "hits": Hits(7, 8, 9, {"device": 3, "disk": 5}, {"peer": 9}),
        "engine_tokens": EngineTokens(1, 2, 3, 4),
        "transfers": {"demand_in": Transfer(3, 12288), "store_in": Transfer(2, 8192)},
        "misses": {"evicted": 4, "never_published": 6},
        "counters": {"plans": 11},
        "peers": [contract.Peer("10.0.0.1:7700", True, "uid-b", "Ready(warm)", "ab" * 16, 12, "", "open", 3)],
        "unknown_config_fields": ["later"],
        "started_at": 1000.5,
        "store": contract.Store("Valkey", "ready", "store_full", "OOM", 77),
        "directory": contract.Directory(13, 14, 15, True, 16, 17),
        "tls": contract.Tls("Managed", "ok", not_after=18.0),
        "costs": contract.Costs(
            contract.Recompute(31, 32, 33, 34, 35, 36, 37),
            contract.Quantiles(41, 42, 43, 1),
            contract.Quantiles(44, 45, 46, 1),
            {"disk": contract.Path(contract.Quantiles(47, 48, 49, 1), contract.Quantiles(51, 52, 53, 1), 54)},
        ),
        "benefit": contract.Benefit(61, 62, 63, 64, 65, 66, 67, 68, 69, 71, 72),
        "first_token": {"acme": {"cold": contract.Quantiles(73, 74, 75, 76)}},
        "canary": Canary("differs", "", 3, 1, 2, 0, 0.25, 0.125, ["u1", "u2"]),
        "reuse": {"acme": contract.Reuse(4096, 9, [1, 0, 4])},
        "events": [contract.Event(1001.5, "attached", {"rows": 8, "format": "ab"})],
    }
    return AgentStatus(**{**fields, **change})


def test_a_status_is_read_as_it_was_written() -> None:
    assert decode_status(encode_status(full())) == full()


def test_fields_of_a_newer_agent_are_ignored() -> None:
    document = {**json.loads(encode_status(full())), "later": {"x": 1}}
    assert decode_status(json.dumps(document).encode()) == full()


def test_another_version_and_other_documents_are_refused_with_a_sentence() -> None:
    with pytest.raises(StatusError) as raised:
        decode_status(encode_status(full(version=2)))
    assert str(raised.value) == ("the agent's status has version 2, this command reads 1; update the older of the two")
    for data in (b"", b"[]", b"{}", b"\xff", msgspec.json.encode({"version": 1})):
        with pytest.raises(StatusError, match=r"^the agent's status can't be read: .*; update the older of"):
            decode_status(data)


def test_every_number_of_the_status_is_a_metric() -> None:
    lines = generate_latest(registry(full)).decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    expected = {
        'kvpool_state{state="Starting"}': 0,
        'kvpool_state{state="Warming"}': 0,
        'kvpool_state{state="Ready(warm)"}': 0,
        'kvpool_state{state="Ready(degraded)"}': 1,
        'kvpool_state{state="Draining"}': 0,
        "kvpool_attached": 1,
        "kvpool_attaches_total": 2,
        "kvpool_arena_limit_bytes": 1 << 30,
        "kvpool_arena_used_bytes": 8192,
        "kvpool_arena_blocks": 2,
        "kvpool_arena_evicted_blocks_total": 5,
        "kvpool_arena_orphan_blocks": 6,
        'kvpool_arena_bytes{part="effective"}': 21,
        'kvpool_arena_bytes{part="leased"}': 22,
        'kvpool_arena_bytes{part="reserved"}': 23,
        'kvpool_arena_bytes{part="unusable"}': 24,
        "kvpool_arena_adjoining_blocks": 25,
        'kvpool_ghost_blocks{size="asked"}': 26,
        'kvpool_ghost_blocks{size="one"}': 27,
        'kvpool_ghost_blocks{size="two"}': 28,
        'kvpool_reuse_distance_blocks{cache_namespace="acme",le="4096"}': 1,
        'kvpool_reuse_distance_blocks{cache_namespace="acme",le="8192"}': 1,
        'kvpool_reuse_distance_blocks{cache_namespace="acme",le="16384"}': 5,
        'kvpool_reuse_distance_blocks{cache_namespace="acme",le="+Inf"}': 9,
        "kvpool_store_ready": 1,
        'kvpool_store_reason{reason="store_full"}': 1,
        "kvpool_store_waiting_blocks": 77,
        "kvpool_directory_entries": 13,
        "kvpool_directory_holders": 14,
        "kvpool_learnt_addresses": 15,
        "kvpool_head_filter": 1,
        "kvpool_known_heads": 16,
        'kvpool_prompt_blocks_total{place="",source="computed"}': 7,
        **{
            f'kvpool_prompt_blocks_total{{place="{place}",source="{source}"}}': blocks
            for source, found in (("local", {"device": 3, "disk": 5}), ("shared", {"peer": 9}))
            for place, blocks in {**dict.fromkeys(PLACES, 0), **found}.items()
        },
        'kvpool_missed_blocks_total{reason="evicted"}': 4,
        'kvpool_missed_blocks_total{reason="never_published"}': 6,
        'kvpool_transfer_bytes_total{transfer="demand_in"}': 12288,
        'kvpool_transfer_bytes_total{transfer="store_in"}': 8192,
        'kvpool_events_total{event="plans"}': 11,
        'kvpool_events_total{event="canary_differs"}': 0,
        'kvpool_events_total{event="probe_mismatch"}': 0,
        'kvpool_events_total{event="tag_failures"}': 0,
        "kvpool_certificate_expires_timestamp_seconds": 18,
        'kvpool_certificate_state{state="ok"}': 1,
        'kvpool_certificate_state{state="no_certificate"}': 0,
        'kvpool_certificate_state{state="expires_soon"}': 0,
        'kvpool_certificate_state{state="expired"}': 0,
        'kvpool_warm_blocks{step="planned"}': 10,
        'kvpool_warm_blocks{step="loaded"}': 9,
        "kvpool_added_seconds": 0.5,
        "kvpool_live_members": 1,
        'kvpool_recompute_cost_seconds{term="start"}': 31,
        'kvpool_recompute_cost_seconds{term="linear"}': 32,
        'kvpool_recompute_cost_seconds{term="pairs"}': 33,
        "kvpool_measured_requests_total": 34,
        'kvpool_recompute_ratio{quantile="0.5"}': 36,
        'kvpool_recompute_ratio{quantile="0.95"}': 37,
        **{
            f'kvpool_load_seconds{{path="{path}",quantile="{quantile}",stage="{stage}"}}': first + i
            for path, stage, first in (("", "lookup", 41), ("", "install", 44), ("disk", "queue", 47))
            for i, quantile in enumerate(("0.05", "0.5", "0.95"))
        },
        **{
            f'kvpool_load_bytes_per_second{{path="disk",quantile="{quantile}"}}': 51 + i
            for i, quantile in enumerate(("0.05", "0.5", "0.95"))
        },
        'kvpool_measured_transfers_total{path="disk"}': 54,
        **{
            f'kvpool_benefit_seconds{{term="{term}"}}': value
            for term, value in zip(
                ("waiting", "gpu", "saved", "loading", "waited", "stalled", "written", "displaced"),
                (61, 62, 64, 65, 66, 67, 68, 69),
                strict=True,
            )
        },
        'kvpool_decode_slowed_ratio{beside="load"}': 71,
        'kvpool_decode_slowed_ratio{beside="store"}': 72,
        **{
            f'kvpool_first_token_seconds{{cache_namespace="acme",kind="cold",quantile="{quantile}"}}': 73 + i
            for i, quantile in enumerate(("0.05", "0.5", "0.95"))
        },
        'kvpool_served_requests_total{cache_namespace="acme",kind="cold"}': 76,
        "kvpool_open_breakers": 1,
        'kvpool_canary_variation{between="hit"}': 0.25,
        'kvpool_canary_variation{between="noise"}': 0.125,
        "kvpool_distrusted_members": 2,
    }
    assert {name: float(value) for name, value in values.items()} == expected


ENGINE_METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="smol"} 1.0
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="smol"} 3200.0
# HELP vllm:prompt_tokens_by_source_total Number of prompt tokens by source.
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="smol",source="local_compute"} 1025.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="smol",source="local_cache_hit"} 128.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="smol",source="external_kv_transfer"} 2047.0
# HELP vllm:prompt_tokens_by_source_created Number of prompt tokens by source.
# TYPE vllm:prompt_tokens_by_source_created gauge
vllm:prompt_tokens_by_source_created{engine="0",model_name="smol",source="local_compute"} 1.7e+09
# HELP vllm:prompt_tokens_cached_by_source_total Number of cached prompt tokens by source.
# TYPE vllm:prompt_tokens_cached_by_source_total counter
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="smol",source="device"} 128.0
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="smol",source="host"} 511.0
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="smol",source="p2p"} 1536.0
"""


def test_the_engines_own_counters_are_read_by_source() -> None:
    assert parse_tokens(ENGINE_METRICS) == EngineTokens(computed=1025, device=128, host=511, pool=1536)


def test_counters_of_several_engine_processes_add_up() -> None:
    second = ENGINE_METRICS.replace('engine="0"', 'engine="1"')
    both = ENGINE_METRICS + "\n".join(line for line in second.splitlines() if not line.startswith("#")) + "\n"
    assert parse_tokens(both) == EngineTokens(computed=2050, device=256, host=1022, pool=3072)


def test_an_engine_without_these_counters_has_zeros() -> None:
    assert parse_tokens("") == parse_tokens("# TYPE up gauge\nup 1\n") == EngineTokens()


def test_hits_are_local_or_shared_by_who_computed_the_block() -> None:
    account = Account()
    account.computed_elsewhere(b"a")
    account.computed_elsewhere(b"b")
    account.computed_here(b"b")
    account.request([b"a", b"b", b"c"], 2, ["host", "host", "host"])
    assert account.hits == Hits(2, 2, 1, {"host": 2}, {"host": 1})


def test_a_hit_says_where_the_block_lay_and_what_was_brought_lies_in_the_arena_for_the_next() -> None:
    account = Account()
    for key, way in ((b"d", "peer"), (b"e", "disk")):
        account.brought(key, way)
    account.computed_elsewhere(b"d")
    chain = [b"a", b"b", b"c", b"d", b"e"]
    account.request(chain, 0, ["device", "host"])
    assert account.hits == Hits(0, 4, 1, {"device": 1, "host": 1, "arena": 1, "disk": 1}, {"peer": 1})
    account.forget_ways(chain)
    account.request(chain[3:], 0, [])
    assert (account.hits.local_by_place["arena"], account.hits.shared_by_place) == (2, {"peer": 1, "arena": 1})


def test_the_account_adds_up_and_keeps_a_bounded_log() -> None:
    account = Account()
    account.miss("busy", 3)
    account.miss("busy", 0)
    account.miss("deadline", -1)
    account.moved("demand_in", 1, 100)
    account.moved("demand_in", 1, 100)
    account.count("plans")
    for i in range(EVENTS_KEPT + 5):
        account.event("tick", n=i)
    assert (account.misses, account.counters) == ({"busy": 3}, {"plans": 1})
    assert account.transfers == {"demand_in": Transfer(2, 200)}
    assert [event.detail["n"] for event in account.events] == list(range(5, EVENTS_KEPT + 5))
