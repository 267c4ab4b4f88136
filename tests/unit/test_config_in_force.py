"""The configuration in force: live fields are taken over, others are named, a broken file changes nothing."""

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvpool_agent.configuration import Configuration
from kvpool_contract.config import (
    LIVE_FIELDS,
    AgentConfig,
    ConfigError,
    decode_config,
    digest_of,
    encode_config,
    take_over,
)
from kvpool_contract.status import ConfigInForce
from kvpool_operator.desired.objects import config_map, document_hash, headless_service, keeping_document
from kvpool_operator.desired.pool import read_pool

GOOD: dict[str, Any] = {
    "version": 1,
    "pool": "chat",
    "arenaBytes": 1 << 30,
    "members": {"dns": "chat-kvpool.ns:7700"},
    "tls": {"mode": "Disabled"},
}

POOL: dict[str, Any] = {
    "apiVersion": "kvpool.io/v1alpha1",
    "kind": "KVCachePool",
    "metadata": {"name": "chat"},
    "spec": {"transport": {"tls": {"mode": "Disabled"}}},
}


def text(**change: Any) -> str:
    return json.dumps({**GOOD, **change})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agent.json"
    path.write_text(text())
    return path


@pytest.fixture
def kept() -> Iterator[int]:
    descriptor = os.memfd_create("kept")
    yield descriptor
    os.close(descriptor)


CHANGES: dict[str, Any] = {
    "prewarm": {"maxStreams": 9},
    "readiness": {"targetPercent": 5},
    "loading": {"deadlineSeconds": 1.5},
    "drain": {"maxSeconds": 8},
    "replication": {"maxBytesPerSecond": 8},
    "canary": {"intervalSeconds": 60},
    "paused": True,
    "generation": 7,
    "arenaBytes": 2 << 30,
    "eviction": "LRU",
    "publication": {"policy": "Never"},
    "declaredPrefixes": [{"text": "a"}],
    "ownedPercent": 50,
    "hugePages": True,
    "members": {"file": "/elsewhere"},
    "tls": {"mode": "Files", "cluster": "c", "k8sNamespace": "n"},
    "engine": {"port": 9},
    "disk": {"path": "/disk", "bytes": 1 << 30},
    "store": {"type": "Valkey", "url": "valkey://valkey.shared:6379"},
    "transport": {"type": "TCP"},
    "pool": "other",
    "cacheNamespaces": [{"name": "public", "keyFile": "/keys/public"}],
    "requestNamespace": "TrustGateway",
    "gatewayKeyFile": "/keys/gateway",
}
# what a field can't be without
WITH: dict[str, dict[str, Any]] = {
    "requestNamespace": {"cacheNamespaces": CHANGES["cacheNamespaces"]},
    "gatewayKeyFile": {"cacheNamespaces": CHANGES["cacheNamespaces"], "requestNamespace": "Signed"},
}


def test_every_field_is_live_or_holds_for_new_pods() -> None:
    assert CHANGES.keys() == {one.name for one in dataclasses.fields(AgentConfig)} - {"version"}
    now = decode_config(text().encode()).config
    for name, value in CHANGES.items():
        found = decode_config(text(**{name: value}, **WITH.get(name, {})).encode()).config
        in_force, new_pods = take_over(now, found)
        assert (in_force == found, in_force == now) == ((True, False) if name in LIVE_FIELDS else (False, True))
        assert bool(new_pods) is (name not in LIVE_FIELDS)


def test_live_fields_of_a_changed_file_hold_and_the_others_are_named(file: Path, kept: int) -> None:
    made = Configuration(file, kept)
    assert made.in_force == ConfigInForce(digest_of(file.read_bytes()))
    assert not made.look()
    file.write_text(
        text(**{name: CHANGES[name] for name in ("prewarm", "arenaBytes", "members", "engine", "generation")})
    )
    assert made.look()
    assert (made.config.prewarm.maxStreams, made.config.arenaBytes, made.config.engine.port) == (9, 1 << 30, 8000)
    assert made.in_force == ConfigInForce(
        digest_of(file.read_bytes()), 7, needs_new_pods=["arenaBytes", "members.dns", "members.file", "engine.port"]
    )
    file.write_text(text(prewarm={"maxStreams": 9}))
    assert made.look()
    assert made.in_force.needs_new_pods == []
    assert not made.look()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "configuration file: it can't be read: No such file or directory; restore it"),
        ("{", "configuration is not JSON: "),
        (text(prewarm={"maxStreams": 0}), "configuration field prewarm.maxStreams: 0 is below 1; raise it"),
        (text(version=9), "configuration version: this agent reads 1, found 9; "),
        (text(paused="yes"), "configuration field paused: Expected `bool`, got `str`; "),
    ],
    ids=["vanished", "no-json", "value", "version", "type"],
)
def test_a_file_that_cannot_be_used_keeps_the_last_configuration_and_is_named(
    file: Path, kept: int, content: str | None, sentence: str
) -> None:
    made = Configuration(file, kept)
    before = made.config
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    assert made.look()
    assert not made.look()  # told once
    assert made.config is before
    told = made.in_force
    assert (told.reason, told.hash) == ("config_invalid", digest_of(text().encode()))
    assert told.problem.startswith(sentence)
    # the next worker of the same pod has it, too
    after = Configuration(file, kept)
    assert (after.config, after.in_force) == (before, told)
    file.write_text(text(paused=True))
    assert after.look() and after.config.paused
    assert after.in_force == ConfigInForce(digest_of(file.read_bytes()))


def test_a_worker_that_follows_another_keeps_what_the_pod_began_with(file: Path, kept: int) -> None:
    Configuration(file, kept)
    file.write_text(text(engine={"port": 9}, paused=True))
    after = Configuration(file, kept)
    assert (after.config.engine.port, after.config.paused) == (8000, True)
    assert after.in_force.needs_new_pods == ["engine.port"]


@pytest.mark.parametrize("left", [b"", b"{", b'{"digest": "x"}', b'{"digest": 1, "document": "{}"}', b"[]"])
def test_what_a_worker_left_half_written_is_no_configuration(file: Path, kept: int, left: bytes) -> None:
    os.pwrite(kept, left, 0)
    assert Configuration(file, kept).config == decode_config(text().encode()).config
    os.ftruncate(kept, 0)
    os.pwrite(kept, left, 0)
    file.unlink()
    with pytest.raises(ConfigError, match="it can't be read"):
        Configuration(file, kept)


def test_unknown_fields_are_told_as_they_change(file: Path, kept: int) -> None:
    made = Configuration(file, kept)
    file.write_text(text(later=1))
    assert made.look()
    assert made.unknown_fields == ("later",)
    file.write_text(text())
    assert made.look()
    assert made.unknown_fields == ()


def test_a_mount_that_swaps_its_folder_is_seen(tmp_path: Path, kept: int) -> None:
    """As the kubelet does it: the file is a link through a link to a folder of its own version."""
    for version, content in (("v1", text()), ("v2", text(paused=True))):
        (tmp_path / version).mkdir()
        (tmp_path / version / "agent.json").write_text(content)
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "agent.json").symlink_to("..data/agent.json")
    made = Configuration(tmp_path / "agent.json", kept)
    (tmp_path / "swap").symlink_to("v2")
    (tmp_path / "swap").rename(tmp_path / "..data")
    assert made.look() and made.config.paused


def test_an_agents_hash_is_that_of_the_document_which_the_operator_wrote(tmp_path: Path, kept: int) -> None:
    pool = read_pool(POOL)
    written = config_map(pool, 3)
    (document,) = written["data"].values()
    path = tmp_path / "agent.json"
    path.write_text(document)
    assert Configuration(path, kept).in_force == ConfigInForce(document_hash(written), 3)
    assert document_hash(config_map(pool, 4)) != document_hash(written)
    assert encode_config(decode_config(document.encode()).config) == document


def test_a_generation_that_changes_nothing_else_keeps_the_document() -> None:
    pool, paused = read_pool(POOL), read_pool(POOL | {"spec": {**POOL["spec"], "paused": True}})
    first = config_map(pool, 3)
    assert '"generation": 3' in first["data"]["agent.json"]
    assert keeping_document(config_map(pool, 4), first) == first
    assert keeping_document(config_map(paused, 4), first) == config_map(paused, 4)
    assert keeping_document(config_map(pool, 4), None) == config_map(pool, 4)
    assert keeping_document(headless_service(pool), headless_service(pool)) == headless_service(pool)
    # edited by hand, to something else, to nothing or in its spelling: written anew
    edited = first["data"]["agent.json"].replace('"maxStreams": 4', '"maxStreams": 5')
    assert edited != first["data"]["agent.json"]
    for text in (edited, "{", first["data"]["agent.json"] + "\n", "[" * 100_000):
        assert keeping_document(config_map(pool, 4), {"data": {"agent.json": text}}) == config_map(pool, 4)
    assert keeping_document(config_map(pool, 4), {"data": None}) == config_map(pool, 4)
