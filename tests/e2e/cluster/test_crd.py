"""The pool's definition on a real API server: what it refuses, what it fills in, and what it prints."""

import json
from collections.abc import Iterator

import pytest
from bad_pools import BAD_POOLS, BadPool
from kubernetes.client import ApiException

from cluster.kube import Kube, wait_for

GOOD = {"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": {"name": "good"}}


@pytest.fixture(scope="module")
def served(kube: Kube) -> Iterator[Kube]:
    """The namespace, once the API server knows pools."""
    kube.install_crd()
    yield kube
    kube.kubectl("delete", "kvp", "--all")


def refusal(kube: Kube, bad: BadPool) -> str:
    with pytest.raises(ApiException) as refused:
        kube.create_pool(bad.document(), dry_run="All")
    message: str = json.loads(refused.value.body)["message"]
    return message


@pytest.mark.parametrize("bad", BAD_POOLS, ids=str)
def test_a_bad_pool_is_refused_with_field_and_fix(served: Kube, bad: BadPool) -> None:
    message = refusal(served, bad)
    assert bad.field in message and bad.admission in message, message


def test_a_good_pool_is_taken_and_its_defaults_are_filled_in(served: Kube) -> None:
    taken = served.create_pool(GOOD, dry_run="All")
    assert taken["spec"] == {
        "engine": {
            "container": "",
            "port": 8000,
            "hostPool": {"size": "4Gi", "adjustResources": True},
            "blockTokens": 256,
            "allowUntested": False,
        },
        "tiers": {
            "memory": {"size": "8Gi", "ownedPercent": 70, "eviction": "GDSF", "hugePages": False},
            "disk": {"size": "0", "storageClassName": "", "podVolume": ""},
        },
        "prewarm": {"maxBytes": "2Gi", "maxBytesPerSecond": "500Mi", "maxStreams": 4, "sourceMaxStreams": 2},
        "readiness": {"targetPercent": 95, "deadlineSeconds": 240, "attachGraceSeconds": 30, "onDeadline": "Degrade"},
        "loading": {
            "mode": "Measured",
            "margin": 1.2,
            "deadlineSeconds": 10,
            "maxBytesPerSecond": "0",
            "calibrationSeconds": 0,
        },
        "drain": {"maxSeconds": 20, "maxBytesPerSecond": "500Mi"},
        "replication": {"maxBytesPerSecond": "0"},
        "canary": {"intervalSeconds": 0},
        "publication": {"policy": "Always", "prefixes": [], "maxDepthTokens": 0, "decodeOutput": False},
        "store": {
            "type": "None",
            "url": "",
            "bucket": "",
            "region": "us-east-1",
            "secretName": "",
            "ttlSeconds": 86400,
            "maxBytesPerSecond": "200Mi",
        },
        "transport": {
            "type": "Auto",
            "rdma": {"resource": "", "devices": [], "memlock": "Node", "allowUnencrypted": False},
            "tls": {"mode": "Managed", "secretRef": {"name": ""}},
        },
        "agent": {
            "image": "",
            "imagePullSecrets": [],
            "resources": {"requests": {}, "limits": {}},
            "updateStrategy": {"type": "OnDelete"},
        },
        "paused": False,
        "cacheNamespaces": [],
        "requestNamespace": "Ignore",
        "gatewayKeySecretRef": {"name": "", "key": "key"},
    }


def test_cache_namespaces_are_taken_and_their_defaults_are_filled_in(served: Kube) -> None:
    acme = {"name": "acme", "podSelector": {"matchLabels": {"tier": "gold"}}, "quota": {"memoryPercent": 20}}
    filled_in = {
        "tenant": "", "keySecretRef": {"name": "", "key": "key"}, "publication": {"maxDepthTokens": 0},
    }  # fmt: skip
    spec = {"cacheNamespaces": [{"name": "public"}, acme], "requestNamespace": "Signed"}
    taken = served.create_pool(GOOD | {"spec": spec | {"gatewayKeySecretRef": {"name": "gateway"}}}, dry_run="All")
    assert taken["spec"]["cacheNamespaces"] == [
        {"name": "public", "quota": {"memoryPercent": 0}, **filled_in},
        {**acme, **filled_in},
    ]


@pytest.mark.parametrize(
    "store",
    [
        {"type": "Valkey", "url": "rediss://cache.team-b:6380/2", "secretName": "cache"},
        {"type": "S3", "url": "https://s3.eu-west-3.amazonaws.com", "bucket": "caches.team-b", "region": "eu-west-3"},
        {"type": "S3", "url": "http://minio:9000/", "bucket": "caches", "secretName": "cache"},
    ],
    ids=["valkey", "aws", "s3"],
)
def test_a_store_of_either_type_is_taken(served: Kube, store: dict[str, str]) -> None:
    taken = served.create_pool(GOOD | {"spec": {"store": store}}, dry_run="All")
    assert taken["spec"]["store"].items() >= store.items()


@pytest.mark.parametrize("size", ["1Mi", 1048576, "1.5Gi", ".5Gi", "1e9", "100000000000m", "2Ti"])
def test_every_spelling_of_a_quantity_is_taken(served: Kube, size: object) -> None:
    taken = served.create_pool(GOOD | {"spec": {"tiers": {"memory": {"size": size}}}}, dry_run="All")
    assert taken["spec"]["tiers"]["memory"]["size"] == size


def test_it_is_explained_and_printed(served: Kube) -> None:
    def explain() -> str:  # discovery tells of a new definition a moment after it is served
        return " ".join(served.kubectl("explain", "kvp.spec.prewarm", check=False).stdout.split())

    explained = wait_for("discovery", explain, 30)
    for sentence in (
        "fetched from other replicas before the pod turns ready.",
        "Sources that a newcomer fetches from at a time. A change takes effect at once.",
    ):
        assert sentence in explained
    served.create_pool(GOOD)

    printed = served.kubectl("get", "kvp").stdout.splitlines()
    assert printed[0].split() == ["NAME", "PHASE", "READY", "WARM", "HIT", "AGE"]
