"""Each field of a pool's spec is live exactly where running agents take it over, and called what the spec calls it."""

from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from kvpool_contract.config import LIVE_FIELDS, AgentConfig, take_over
from kvpool_operator.desired.objects import agent_config, pool_field
from kvpool_operator.desired.parts import LIVE, NEW_PODS
from kvpool_operator.desired.pool import PoolSpec, read_pool


def document(spec: dict[str, Any]) -> dict[str, Any]:
    frame = {"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": {"name": "chat"}}
    return {**frame, "spec": spec}


# live, though no agent is told
OF_THE_CONTROLLER = ("agent.updateStrategy.type",)
EVICTIONS = ("GDSF", "LRU", "S3FIFO")


def _leaves(part: Any, path: str = "") -> Iterator[tuple[str, Any, str]]:
    """Path, value and the word for when a change applies, of every field of a spec."""
    for each in msgspec.structs.fields(type(part)):
        value, inner = getattr(part, each.name), path + each.encode_name
        if isinstance(value, msgspec.Struct):
            yield from _leaves(value, f"{inner}.")
        else:
            (meta,) = (m for m in get_args(each.type) if isinstance(m, msgspec.Meta))
            yield inner, value, (meta.extra or {})["applies"]


def _another(value: Any) -> Any:
    if value == "OnDelete":
        return "InPlace"
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1 if value < 95 else value - 1
    if isinstance(value, list):
        return [{"name": "other"}]
    if isinstance(value, str) and value in EVICTIONS:
        return next(word for word in EVICTIONS if word != value)
    return {"cpu": "1"} if isinstance(value, dict) else "other"


SPACES: dict[str, Any] = {"cacheNamespaces": [{"name": "other"}]}
SIGNED = {**SPACES, "requestNamespace": "Signed", "gatewayKeySecretRef": {"name": "gateway"}}
STORE = {"store": {"type": "Valkey", "url": "valkey://a:6379"}}
DECLARED = {"publication": {"policy": "Declared", "prefixes": [{"text": "a"}]}}
BUCKET = {"store": {"type": "S3", "url": "https://s3", "bucket": "caches"}}
# what a field can't be without, and another value where not any will do
WITH: dict[str, dict[str, Any]] = {
    "requestNamespace": SPACES,
    "gatewayKeySecretRef.name": SIGNED,
    "gatewayKeySecretRef.key": SIGNED,
    "tiers.disk.storageClassName": {"tiers": {"disk": {"size": "1Gi"}}},
    "publication.prefixes": DECLARED,
    **{f"store.{field}": STORE for field in ("url", "secretName", "ttlSeconds", "maxBytesPerSecond")},
    **{f"store.{field}": BUCKET for field in ("bucket", "region")},
}
OTHER = {
    "requestNamespace": "TrustGateway",
    "transport.tls.mode": "Disabled",
    "readiness.onDeadline": "Block",
    "loading.mode": "Always",
    "publication.policy": "Never",
    "publication.prefixes": [{"tokenIds": [1, 2]}],
    "transport.type": "TCP",
    "transport.rdma.resource": "rdma/hca",
    "transport.rdma.memlock": "IPCLock",
    "transport.rdma.devices": ["mlx5_0"],
    "store.url": "valkey://b:6379",
}


def _specs() -> list[tuple[str, str, AgentConfig, AgentConfig]]:
    """For each field of the spec: its path, what is said of it, and the agents' configuration before and with another
    value."""
    found = []
    for path, value, applies in _leaves(PoolSpec()):
        # the one comes with a mode alone, the pods have it, and no agent is told; the other one with a url alone
        if path in ("transport.tls.secretRef.name", "store.type"):
            continue
        before = WITH.get(path, {})
        spec: Any = OTHER.get(path, _another(value))
        *parts, last = path.split(".")
        inner = before
        for name in parts:
            inner = inner.get(name, {})
        spec = {**(inner if parts else {}), last: spec}
        for name in reversed(parts):
            spec = {name: spec}
        configs = [agent_config(read_pool(document(one))) for one in (before, {**before, **spec})]
        found.append((path, applies, *configs))
    return found


def test_a_field_is_live_exactly_where_running_agents_take_it_over() -> None:
    live, named = set(), set()
    for path, applies, now, wanted in _specs():
        in_force, needs_new_pods = take_over(now, wanted)
        told = in_force != now
        if path in OF_THE_CONTROLLER:
            assert (applies, wanted) == (LIVE, now), path
            continue
        assert applies == (LIVE if told else NEW_PODS), path
        if told:
            live |= {name for name in LIVE_FIELDS if getattr(now, name) != getattr(wanted, name)}
        # what agents name as needing new pods is called what the spec calls it; of disk and store, what it is part of
        called = next((whole for whole in ("tiers.disk", "store") if path.startswith(f"{whole}.")), path)
        assert {pool_field(each) for each in needs_new_pods} == ({called} if wanted != now and not told else set()), (
            path
        )
        named |= set(needs_new_pods)
    assert live == set(LIVE_FIELDS) - {"generation"}
    assert named == {
        "arenaBytes",
        "engine.port",
        "cacheNamespaces",
        "requestNamespace",
        "eviction",
        "ownedPercent",
        "hugePages",
        "publication.policy",
        "publication.maxDepthTokens",
        "disk.path",
        "transport.type",
        "transport.rdma.devices",
        "transport.rdma.allowUnencrypted",
        "disk.bytes",
        "store.url",
        "store.bucket",
        "store.region",
        "store.credentialsFolder",
        "store.ttlSeconds",
        "store.maxBytesPerSecond",
        "tls.mode",
    }
