"""The pool's types: every spelling of a quantity, every refusal as one sentence, and the objects that
follow."""

import json
from typing import Any

import pytest
from bad_pools import BAD_POOLS, BadPool

from kvpool_contract.config import decode_config
from kvpool_operator.desired.objects import agent_config, pool_objects
from kvpool_operator.desired.parts import PoolError
from kvpool_operator.desired.pool import read_pool, read_stored_pool
from kvpool_operator.desired.quantity import QuantityError, format_quantity, parse_quantity
from kvpool_operator.desired.trust import Trust

TRUST = Trust("c", "s:443", "peers", "signers")


def document(spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kvpool.io/v1alpha1",
        "kind": "KVCachePool",
        "metadata": {"name": "chat", **metadata},
        "spec": spec or {},
    }


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4Gi", 4 * 2**30),
        ("500Mi", 500 * 2**20),
        ("500M", 500_000_000),
        ("1.5Gi", 3 * 2**29),
        (".5Ki", 512),
        ("0.1Ki", 103),  # 102.4: a fraction of a byte rounds up
        ("1e3", 1000),
        ("12E2", 1200),
        ("1E", 10**18),
        ("2Ei", 2**61),
        ("1500m", 2),
        ("7", 7),
        (7, 7),
        (2.5, 3),
    ],
)
def test_a_quantity_is_exact(text: object, count: int) -> None:
    assert parse_quantity(text) == count


@pytest.mark.parametrize("text", ["4GB", "4 Gi", "-1Gi", "", "Gi", "1ki", "0x10", "1e", None, True, ["4Gi"], "1e999"])
def test_what_is_no_quantity_is_refused(text: object) -> None:
    with pytest.raises(QuantityError) as refusal:
        parse_quantity(text)
    assert str(refusal.value) == (f"{text!r} is no quantity; write a number with a unit, such as 500Mi or 4Gi")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (1, "1"),
        (1024, "1Ki"),
        (1536, "1536"),
        (3 * 2**29, "1536Mi"),
        (2**40, "1Ti"),
        (10**9, "1000000000"),
    ],
)
def test_a_quantity_is_written_shortest_and_exact(count: int, text: str) -> None:
    assert format_quantity(count) == text
    assert parse_quantity(text) == count


def test_an_agents_memory_limit_of_just_the_arena_is_taken() -> None:
    spec = {"agent": {"resources": {"limits": {"memory": "1Gi"}}}, "tiers": {"memory": {"size": 2**30}}}
    assert read_pool(document(spec)).spec.agent.resources.limits == {"memory": "1Gi"}


def test_an_empty_spec_has_the_defaults() -> None:
    assert (
        agent_config(read_pool(document()), trust=TRUST)
        == decode_config(
            json.dumps(
                {
                    "version": 1,
                    "pool": "chat",
                    "arenaBytes": 8589934592,
                    "eviction": "GDSF",
                    "ownedPercent": 70,
                    "hugePages": False,
                    "members": {"dns": "chat-kvpool.default.svc:7700"},
                    "tls": {"mode": "Managed", "signer": "s:443", "cluster": "c", "k8sNamespace": "default"},
                    "engine": {"port": 8000},
                    "prewarm": {
                        "maxBytes": 2147483648,
                        "maxBytesPerSecond": 524288000,
                        "maxStreams": 4,
                        "sourceMaxStreams": 2,
                    },
                    "readiness": {
                        "targetPercent": 95,
                        "deadlineSeconds": 240.0,
                        "attachGraceSeconds": 30.0,
                        "onDeadline": "Degrade",
                    },
                    "loading": {
                        "mode": "Measured",
                        "margin": 1.2,
                        "deadlineSeconds": 10.0,
                        "maxBytesPerSecond": 0,
                        "calibrationSeconds": 0,
                    },
                    "drain": {"maxSeconds": 20.0, "maxBytesPerSecond": 524288000},
                    "replication": {"maxBytesPerSecond": 0},
                    "canary": {"intervalSeconds": 0},
                    "publication": {"policy": "Always", "prefixes": [], "maxDepthTokens": 0, "decodeOutput": False},
                }
            ).encode()
        ).config
    )


def test_what_members_are_told_of_certificates_comes_with_the_pools_mode() -> None:
    def entries(trust: Trust | None, **tls: Any) -> list[dict[str, str]]:
        objects = pool_objects(read_pool(document({"transport": {"tls": tls}})), trust=trust)
        assert objects[-1]["kind"] == "Service"
        return [{name: text[:5] for name, text in o["data"].items()} for o in objects if o["kind"] == "ConfigMap"]

    own = {"agent.json": '{\n  "', "peers-ca.crt": "peers"}
    assert entries(TRUST) == [own | {"signer-ca.crt": "signe"}]
    assert entries(TRUST, mode="Secret", secretRef={"name": "s"}) == [own]
    assert entries(TRUST, mode="Disabled") == entries(None, mode="Disabled") == [{"agent.json": '{\n  "'}]
    # an agent that is not told whom to trust can do nothing with the rest
    assert entries(None) == entries(None, mode="Secret", secretRef={"name": "s"}) == []


def test_every_field_reaches_the_configuration() -> None:
    pool = read_pool(
        document(
            {
                "engine": {
                    "container": "llm",
                    "port": 9,
                    "hostPool": {"size": "1Gi"},
                    "blockTokens": 64,
                    "allowUntested": True,
                },
                "tiers": {
                    "memory": {"size": "3Gi", "ownedPercent": 55, "hugePages": True, "eviction": "S3FIFO"},
                    "disk": {"size": "10Gi", "storageClassName": "fast"},
                },
                "store": {
                    "type": "S3",
                    "url": "https://s3.eu-west-3.amazonaws.com",
                    "bucket": "caches",
                    "region": "eu-west-3",
                    "secretName": "cache",
                    "ttlSeconds": 600,
                    "maxBytesPerSecond": "4M",
                },
                "prewarm": {"maxBytes": "0", "maxBytesPerSecond": "10M", "maxStreams": 7, "sourceMaxStreams": 3},
                "readiness": {
                    "targetPercent": 50,
                    "deadlineSeconds": 1.5,
                    "attachGraceSeconds": 2,
                    "onDeadline": "Block",
                },
                "loading": {
                    "mode": "Never",
                    "margin": 2,
                    "deadlineSeconds": 3,
                    "maxBytesPerSecond": "1G",
                    "calibrationSeconds": 30,
                },
                "drain": {"maxSeconds": 7, "maxBytesPerSecond": "2M"},
                "replication": {"maxBytesPerSecond": "3M"},
                "canary": {"intervalSeconds": 600},
                "publication": {
                    "policy": "Declared",
                    "prefixes": [{"text": "You are"}, {"tokenIds": [1, 2]}],
                    "maxDepthTokens": 4096,
                },
                "agent": {
                    "image": "i",
                    "imagePullSecrets": [{"name": "s"}],
                    "resources": {"requests": {"cpu": 1}, "limits": {"memory": "4Gi"}},
                },
                "transport": {
                    "type": "RDMA",
                    "rdma": {
                        "resource": "rdma/hca",
                        "devices": ["mlx5_0"],
                        "memlock": "IPCLock",
                        "allowUnencrypted": True,
                    },
                    "tls": {"mode": "Secret", "secretRef": {"name": "ours"}},
                },
                "paused": True,
            },
            namespace="team-a",
        )
    )
    engine = pool.spec.engine
    assert (engine.container, engine.host_pool.size, engine.block_tokens, engine.allow_untested) == (
        "llm",
        2**30,
        64,
        True,
    )
    assert (pool.spec.agent.image, pool.spec.agent.resources.requests) == ("i", {"cpu": 1})
    assert pool.spec.agent.resources.limits == {"memory": "4Gi"}
    assert [secret.name for secret in pool.spec.agent.image_pull_secrets] == ["s"]
    assert (pool.spec.transport.tls.secret_ref.name, pool.spec.transport.rdma.resource) == ("ours", "rdma/hca")
    assert pool.spec.transport.rdma.memlock == "IPCLock"
    data = pool_objects(pool, trust=TRUST)[0]["data"]
    assert (sorted(data), data["peers-ca.crt"]) == (["agent.json", "peers-ca.crt"], "peers")
    assert json.loads(data["agent.json"]) == {
        "version": 1,
        "pool": "chat",
        "arenaBytes": 3221225472,
        "eviction": "S3FIFO",
        "ownedPercent": 55,
        "hugePages": True,
        "disk": {"path": "/var/lib/kvpool", "bytes": 10737418240},
        "store": {
            "type": "S3",
            "url": "https://s3.eu-west-3.amazonaws.com",
            "bucket": "caches",
            "region": "eu-west-3",
            "prefix": "kvpool/team-a/chat/",
            "credentialsFolder": "/kvpool/store",
            "ttlSeconds": 600,
            "maxBytesPerSecond": 4000000,
        },
        "transport": {"type": "RDMA", "rdma": {"devices": ["mlx5_0"], "allowUnencrypted": True}},
        "members": {"dns": "chat-kvpool.team-a.svc:7700", "file": ""},
        "tls": {"mode": "Files", "signer": "", "cluster": "c", "k8sNamespace": "team-a"},
        "engine": {"port": 9},
        "prewarm": {"maxBytes": 0, "maxBytesPerSecond": 10000000, "maxStreams": 7, "sourceMaxStreams": 3},
        "readiness": {
            "targetPercent": 50,
            "deadlineSeconds": 1.5,
            "attachGraceSeconds": 2.0,
            "onDeadline": "Block",
        },
        "loading": {
            "mode": "Never",
            "margin": 2.0,
            "deadlineSeconds": 3.0,
            "maxBytesPerSecond": 1000000000,
            "calibrationSeconds": 30.0,
        },
        "drain": {"maxSeconds": 7.0, "maxBytesPerSecond": 2000000},
        "replication": {"maxBytesPerSecond": 3000000},
        "canary": {"intervalSeconds": 600},
        "publication": {"policy": "Declared", "maxDepthTokens": 4096},
        "declaredPrefixes": [{"text": "You are", "tokenIds": []}, {"text": "", "tokenIds": [1, 2]}],
        "paused": True,
        "generation": 0,
        "cacheNamespaces": [],
        "requestNamespace": "Ignore",
        "gatewayKeyFile": "",
    }


@pytest.mark.parametrize("bad", BAD_POOLS, ids=str)
def test_a_refusal_names_the_field_and_the_fix(bad: BadPool) -> None:
    with pytest.raises(PoolError) as refusal:
        read_pool(bad.document())
    assert str(refusal.value) == bad.offline


@pytest.mark.parametrize("name", ["", "Chat", "1chat", "chat-", "a.b", "a" * 57])
def test_a_name_that_no_service_can_carry_is_refused(name: str) -> None:
    with pytest.raises(PoolError) as refusal:
        read_pool(document(name=name))
    assert str(refusal.value) == (
        f"pool field metadata.name: {name!r} can't name the pool's Service; use at most 56 lower-case "
        f"letters, "
        f"digits and '-', a letter first and no '-' last"
    )


def test_the_longest_name_fits_a_service() -> None:
    names = {o["metadata"]["name"] for o in pool_objects(read_pool(document(name="a" * 56)))}
    assert names == {"a" * 56 + "-kvpool"} and len(names.pop()) == 63


def test_a_pool_as_the_server_keeps_it_is_the_pool_as_written() -> None:
    own = {"uid": "1", "generation": 3, "managedFields": [{}], "finalizers": [], "labels": {"a": "b"}}
    stored = document({"engine": {"port": 9}}, **own) | {"status": {"phase": "Ready"}}
    assert read_stored_pool(stored) == read_pool(document({"engine": {"port": 9}}))


def test_a_definition_that_is_newer_makes_no_stored_pool_unusable() -> None:
    """The API server fills its new defaults into pools that were stored long before."""
    known = {"engine": {"port": 9, "hostPool": {"size": "1Gi"}}, "agent": {"resources": {"requests": {"cpu": 1}}}}
    newer = document(
        {
            **known,
            "engine": {"port": 9, "hostPool": {"size": "1Gi", "adjust": True}, "type": "Auto"},
            "tiers": {"disk": {}},
            "drain": {"maxSeconds": 20},
        }
    )
    assert read_stored_pool(newer) == read_pool(document(known))
    with pytest.raises(PoolError, match="this version does not know it"):
        read_pool(newer)
    with pytest.raises(PoolError, match=r"^pool field spec.engine.port: "):
        read_stored_pool(document({"engine": {"port": 0, "type": "Auto"}}))


def test_a_namespace_is_checked() -> None:
    with pytest.raises(PoolError, match=r"^pool field metadata.namespace: 'a_b' is no namespace; use at most 63 "):
        read_pool(document(namespace="a_b"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"kind": "Pool"},
            "pool: this is no KVCachePool of kvpool.io/v1alpha1; begin with these as kind and apiVersion",
        ),
        (
            {"apiVersion": "kvpool.io/v1"},
            "pool: this is no KVCachePool of kvpool.io/v1alpha1; begin with these as kind and apiVersion",
        ),
        ({"metadata": {}}, "pool field metadata.name: it is missing; add it"),
        (
            {"metadata": {"name": "a", "generateName": "a"}},
            "pool field metadata.generateName: this version does not know it; "
            "metadata has name, namespace, labels, annotations",
        ),
        (
            {"status": {}},
            "pool field status: this version does not know it; the document has apiVersion, kind, metadata, spec",
        ),
    ],
)
def test_the_frame_of_the_document_is_checked(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PoolError) as refusal:
        read_pool(document() | change)
    assert str(refusal.value) == sentence
