"""`store`: what agents are told and given of it, and the condition that says who does not reach it."""

from typing import Any

import pytest
from agent_status import agent

from kvpool_contract.config import AgentConfig, ConfigError, Members, Tls, decode_config, encode_config
from kvpool_contract.external import Store as AgentStore
from kvpool_contract.reasons import explain
from kvpool_contract.status import Store
from kvpool_operator.desired.events import pool_events
from kvpool_operator.desired.pool import read_pool
from kvpool_operator.desired.status import Member, Observed, pool_status
from kvpool_operator.inject import Injected, Settings, inject

READY, METADATA = Store("Valkey", "ready"), {"name": "chat", "namespace": "team-a", "uid": "u"}


def pool(**store: Any) -> Any:
    metadata = {"name": "chat", "namespace": "team-a"}
    return read_pool(
        {"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": metadata, "spec": {"store": store}}
    )


def agent_of(**store: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The volumes of an injected pod, and the agent's container."""
    engine = {"name": "engine", "image": "vllm/vllm-openai", "args": ["serve"]}
    found = inject({"spec": {"containers": [engine]}}, pool(**store), Settings(image="agent:1"))
    assert isinstance(found, Injected)
    spec = found.template["spec"]
    return spec["volumes"], next(c for c in spec["initContainers"] if c["name"] == "kvpool-agent")


def test_the_credentials_are_mounted_into_the_agent_alone_and_may_come_later() -> None:
    volumes, container = agent_of(type="Valkey", url="valkey://cache:6379", secretName="cache")
    assert {"name": "kvpool-store", "secret": {"secretName": "cache", "optional": True}} in volumes
    mounted = {"name": "kvpool-store", "mountPath": "/kvpool/store", "readOnly": True}
    assert mounted in container["volumeMounts"]


@pytest.mark.parametrize("store", [{}, {"type": "Valkey", "url": "valkey://cache:6379"}], ids=["none", "no secret"])
def test_without_a_secret_nothing_is_mounted(store: dict[str, Any]) -> None:
    volumes, container = agent_of(**store)
    assert "kvpool-store" not in str(volumes) + str(container)


def seen(*stores: Store | None, store: bool = True) -> dict[str, Any]:
    members = [
        Member(name, f"{name}-uid", status=None if one is None else agent(store=one), error="" if one else "silent")
        for name, one in zip("abc", stores, strict=False)
    ]
    return pool_status("chat", 1, Observed(members, store=store), None, "2026-01-01T00:00:00Z")


def condition(status: dict[str, Any]) -> tuple[str, str, str] | None:
    found = [c for c in status["conditions"] if c["type"] == "StoreReady"]
    return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else None


def test_where_there_is_to_be_none_nothing_is_said_of_it() -> None:
    assert condition(seen(Store(), store=False)) is None


def test_all_members_reach_it() -> None:
    told = condition(seen(READY, READY))
    assert told == ("True", "AllReachStore", "Every agent that answers, of 2, reaches the external store.")


def test_one_that_does_not_is_named_with_its_reason_and_the_pool_is_as_good_as_without() -> None:
    status = seen(READY, Store("Valkey", "degraded", "store_unreachable", "refused"))
    sentence = f"1 of 2: b. {explain('store_unreachable')} (refused)"
    assert condition(status) == ("False", "StoreNotReached", sentence)
    (event,) = [e for e in pool_events(METADATA, None, status, []) if e.reason == "StoreNotReached"]
    assert (event.type, event.message) == ("Warning", sentence)
    assert [c["reason"] for c in status["conditions"] if c["type"] == "Ready"] != ["StoreNotReached"]


def test_one_that_can_not_be_written_to_is_told_as_well() -> None:
    told = condition(seen(Store("Valkey", "ready", "store_full", "")))
    assert told == ("False", "StoreNotReached", f"1 of 1: a. {explain('store_full')}")


def test_a_pod_that_was_made_without_it_is_to_be_made_anew() -> None:
    told = condition(seen(Store()))
    assert told == (
        "False",
        "StoreNotReached",
        "1 of 1: a. Their pods were made without it: make them anew.",
    )


def test_one_that_was_not_reached_yet_is_no_fault_yet() -> None:
    told = condition(seen(READY, Store("Valkey", "opening")))
    assert told is not None and told[:2] == ("False", "StoreOpening")


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("url", {"url": "cache:6379"}),
        ("url", {"url": "http://cache"}),
        ("url", {"url": "valkey://:secret@cache"}),
        ("url", {"url": "valkey://cache/a"}),
        ("url", {"url": "valkey://cache:99999"}),
        ("url", {"url": "valkey://cache?db=2"}),
        ("url", {"type": "S3", "bucket": "caches"}),
        ("url", {"type": "S3", "bucket": "caches", "url": "https://s3/caches"}),
        ("bucket", {"type": "S3", "url": "https://s3"}),
        ("bucket", {"type": "S3", "url": "https://s3", "bucket": "a"}),
        ("region", {"type": "S3", "url": "https://s3", "bucket": "caches", "region": "eu west"}),
        ("ttlSeconds", {"ttlSeconds": 0}),
        ("maxBytesPerSecond", {"maxBytesPerSecond": 0}),
    ],
)
def test_an_agent_refuses_a_store_that_can_not_be_used(field: str, change: dict[str, Any]) -> None:
    def document(**fields: Any) -> bytes:
        store = AgentStore(**{"type": "Valkey", "url": "valkeys://cache.team-b.svc:6380/2", **fields})
        members, tls = Members(file="members"), Tls(mode="Disabled")
        config = AgentConfig(version=1, pool="p", arenaBytes=1 << 20, members=members, tls=tls, store=store)
        return encode_config(config).encode()

    assert decode_config(document()).config.store.type == "Valkey"
    with pytest.raises(ConfigError, match=rf"^configuration field store\.{field}: ") as raised:
        decode_config(document(**change))
    assert field != "url" or "secret@" not in str(raised.value)
