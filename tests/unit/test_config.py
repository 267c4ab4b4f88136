"""The agent's configuration: every wrong field has exactly its sentence, and a newer document is read all the same."""

import json
from typing import Any

import pytest

from kvpool_contract.config import AgentConfig, ConfigError, Members, decode_config, encode_config
from kvpool_contract.prefixes import TOO_LONG

GOOD: dict[str, Any] = {
    "version": 1,
    "pool": "chat",
    "arenaBytes": 1 << 30,
    "members": {"dns": "chat-kvpool.ns:7700"},
    "tls": {"mode": "Disabled"},
}
NAMED = {"cluster": "c", "k8sNamespace": "n"}
SPEC = "; correct it in the pool's spec"


def decode(**change: Any) -> AgentConfig:
    return decode_config(json.dumps({**GOOD, **change}).encode()).config


def test_a_document_without_options_has_the_documented_defaults() -> None:
    config = decode()
    assert (config.engine.port, config.loading.deadlineSeconds) == (8000, 10.0)
    assert (config.prewarm.maxBytes, config.prewarm.maxBytesPerSecond, config.prewarm.maxStreams) == (
        2 << 30,
        500 << 20,
        4,
    )
    readiness = config.readiness
    assert (readiness.targetPercent, readiness.deadlineSeconds, readiness.attachGraceSeconds) == (95, 240.0, 30.0)


def test_what_is_written_is_read_again() -> None:
    managed = {**NAMED, "mode": "Managed", "signer": "s.ns.svc:443"}
    config = decode(tls=managed, prewarm={"maxBytes": 5}, readiness={"targetPercent": 100}, engine={"port": 9000})
    assert decode_config(encode_config(config).encode()).config == config
    assert decode_config(encode_config(config).encode()).unknown_fields == ()


def test_unknown_fields_are_ignored_and_counted_by_their_paths() -> None:
    document = {
        **GOOD,
        "later": {"x": 1},
        "prewarm": {"maxBytes": 1, "ranking": "auto"},
        "members": {**GOOD["members"], "z": 1},
    }
    decoded = decode_config(json.dumps(document).encode())
    assert sorted(decoded.unknown_fields) == ["later", "members.z", "prewarm.ranking"]
    assert decoded.config.prewarm.maxBytes == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"pool": ""}, "pool: it is empty; name the pool"),
        ({"pool": 5}, "pool: Expected `str`, got `int`" + SPEC),
        ({"arenaBytes": "1Gi"}, "arenaBytes: Expected `int`, got `str`" + SPEC),
        ({"arenaBytes": 1000}, "arenaBytes: 1000 is below 1048576; raise it"),
        ({"members": {}}, "members: set exactly one of members.dns and members.file"),
        ({"members": {"dns": "a:1", "file": "/f"}}, "members: set exactly one of members.dns and members.file"),
        ({"members": {"dns": "chat"}}, "members.dns: 'chat' has no port; write host:port"),
        ({"tls": {}}, "tls: Object missing required field `mode`" + SPEC),
        ({"tls": {"mode": "Off"}}, "tls.mode: Invalid enum value 'Off'" + SPEC),
        ({"tls": {**NAMED, "mode": "Managed"}}, "tls.signer: '' has no port; write host:port"),
        (
            {"tls": {"mode": "Files", "k8sNamespace": "n"}},
            "tls: certificate name: '' can't be a cluster; use letters, digits, - . _; set tls.cluster and "
            "tls.k8sNamespace",
        ),
        (
            {"tls": {**NAMED, "mode": "Files", "k8sNamespace": "a/b"}},
            "tls: certificate name: 'a/b' can't be a k8s namespace; use letters, digits, - . _; set tls.cluster and "
            "tls.k8sNamespace",
        ),
        ({"members": []}, "members: Expected `object`, got `array`" + SPEC),
        ({"engine": {"port": 0}}, "engine.port: 0 is no port; use 1 to 65535"),
        ({"engine": {"port": 65536}}, "engine.port: 65536 is no port; use 1 to 65535"),
        ({"engine": {"port": "x"}}, "engine.port: Expected `int`, got `str`" + SPEC),
        ({"prewarm": {"maxBytes": -1}}, "prewarm.maxBytes: -1 is below 0; raise it"),
        ({"prewarm": {"maxBytesPerSecond": 0}}, "prewarm.maxBytesPerSecond: 0 is below 1; raise it"),
        ({"prewarm": {"maxStreams": 0}}, "prewarm.maxStreams: 0 is below 1; raise it"),
        ({"readiness": {"targetPercent": 0}}, "readiness.targetPercent: 0 is below 1; raise it"),
        ({"readiness": {"targetPercent": 101}}, "readiness.targetPercent: it is above 100; lower it"),
        ({"readiness": {"deadlineSeconds": -1}}, "readiness.deadlineSeconds: -1.0 is below 0; raise it"),
        ({"readiness": {"attachGraceSeconds": -1}}, "readiness.attachGraceSeconds: -1.0 is below 0; raise it"),
        ({"readiness": {"onDeadline": "Wait"}}, "readiness.onDeadline: Invalid enum value 'Wait'" + SPEC),
        ({"prewarm": {"sourceMaxStreams": 0}}, "prewarm.sourceMaxStreams: 0 is below 1; raise it"),
        ({"loading": {"maxBytesPerSecond": -1}}, "loading.maxBytesPerSecond: -1 is below 0; raise it"),
        (
            {"declaredPrefixes": [{"text": "a", "tokenIds": [1]}]},
            "declaredPrefixes: an entry has both text and tokenIds, or neither; keep one",
        ),
        ({"declaredPrefixes": [{}]}, "declaredPrefixes: an entry has both text and tokenIds, or neither; keep one"),
        ({"declaredPrefixes": [{"text": "a"}] * 17}, "declaredPrefixes: 17 entries; use 16"),
        (
            {"declaredPrefixes": [{"tokenIds": [2**31]}]},
            "declaredPrefixes: a token id is not among 0 to 2147483647; correct it",
        ),
        ({"declaredPrefixes": [{"tokenIds": [1] * 8193}] * 2}, f"declaredPrefixes: {TOO_LONG}"),
        (
            {"cacheNamespaces": [{"name": "a", "keyFile": "k", "maxDepthTokens": -1}]},
            "cacheNamespaces[0].maxDepthTokens: -1 is below 0; raise it",
        ),
        ({"publication": {"maxDepthTokens": -1}}, "publication.maxDepthTokens: -1 is below 0; raise it"),
        ({"replication": {"maxBytesPerSecond": -1}}, "replication.maxBytesPerSecond: -1 is below 0; raise it"),
        ({"canary": {"intervalSeconds": -1}}, "canary.intervalSeconds: -1.0 is below 0; raise it"),
        ({"loading": {"calibrationSeconds": -1}}, "loading.calibrationSeconds: -1.0 is below 0; raise it"),
        ({"drain": {"maxSeconds": -1}}, "drain.maxSeconds: -1.0 is below 0; raise it"),
        ({"drain": {"maxBytesPerSecond": 0}}, "drain.maxBytesPerSecond: 0 is below 1; raise it"),
        ({"loading": {"margin": 0.5}}, "loading.margin: 0.5 is below 1; raise it"),
        ({"loading": {"deadlineSeconds": 0}}, "loading.deadlineSeconds: 0.0 is below 0.05; raise it"),
    ],
    ids=lambda value: value.split(":")[0] if isinstance(value, str) else None,
)
def test_each_wrong_field_has_exactly_its_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        decode(**change)
    assert str(raised.value) == f"configuration field {sentence}"


@pytest.mark.parametrize("field", ["pool", "arenaBytes", "members", "tls"])
def test_a_missing_field_is_named(field: str) -> None:
    document = {name: value for name, value in GOOD.items() if name != field}
    with pytest.raises(ConfigError) as raised:
        decode_config(json.dumps(document).encode())
    assert str(raised.value) == (
        f"configuration field the document: Object missing required field `{field}`; correct it in the pool's spec"
    )


@pytest.mark.parametrize(
    ("document", "found"), [({**GOOD, "version": 2}, "2"), ({}, "None"), ([], "None"), (5, "None")]
)
def test_another_version_is_refused_before_anything_else(document: Any, found: str) -> None:
    with pytest.raises(ConfigError) as raised:
        decode_config(json.dumps(document).encode())
    assert str(raised.value) == (
        f"configuration version: this agent reads 1, found {found}; update the older of operator and agent"
    )


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'{"pool": "\xff"}'])
def test_bytes_that_are_no_json_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"^configuration is not JSON: .*; write the file anew$"):
        decode_config(data)


def test_members_may_come_from_a_file() -> None:
    assert decode(members={"file": "/etc/members"}).members == Members(file="/etc/members")
