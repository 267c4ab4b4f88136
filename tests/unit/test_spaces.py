"""Cache namespaces of a pool: what agents are told, which pods get which keys, and keys that the controller makes."""

import asyncio
import base64
import json
import logging
from typing import Any, cast

import pytest
from kubernetes.client.exceptions import ApiException
from pod_templates import template

from kvpool_contract.config import decode_config
from kvpool_contract.tenants import parse_keys
from kvpool_operator.controller.cluster import Cluster, Entries, RefusedError
from kvpool_operator.controller.keys import see_to_keys
from kvpool_operator.desired.objects import config_map
from kvpool_operator.desired.pool import KVCachePool, read_pool
from kvpool_operator.desired.trust import Trust
from kvpool_operator.inject import Injected, Settings, inject, restore

SPEC: dict[str, Any] = {
    "cacheNamespaces": [
        {"name": "public"},
        {
            "name": "acme",
            "tenant": "acme-inc",
            "podSelector": {"matchLabels": {"tier": "gold"}},
            "quota": {"memoryPercent": 20},
            "keySecretRef": {"name": "acme-key", "key": "kv"},
            "publication": {"maxDepthTokens": 4096},
        },
        {"name": "umbrella", "podSelector": {}, "quota": {"memoryPercent": 10}},
    ],
    "requestNamespace": "Signed",
    "gatewayKeySecretRef": {"name": "gateway"},
    "agent": {"image": "i"},
}


CLOSED: dict[str, Any] = {"requestNamespace": "Ignore", "gatewayKeySecretRef": {}}


def pool(**spec: Any) -> KVCachePool:
    document = {
        "apiVersion": "kvpool.io/v1alpha1",
        "kind": "KVCachePool",
        "metadata": {"name": "chat", "namespace": "a"},
    }
    return read_pool({**document, "spec": SPEC | spec})


def injected(labels: dict[str, str], made: KVCachePool | None = None) -> dict[str, Any]:
    given = template(labels=labels)
    result = inject(given, made or pool(), Settings())
    assert isinstance(result, Injected)
    assert restore(result.template) == given
    spec: dict[str, Any] = result.template["spec"]
    return spec


def mounted(spec: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """By file: the Secret and its entry."""
    (volume,) = (v for v in spec["volumes"] if v["name"] == "kvpool-keys")
    found = {}
    for source in volume["projected"]["sources"]:
        assert source["secret"]["optional"] is True
        (item,) = source["secret"]["items"]
        found[item["path"]] = (source["secret"]["name"], item["key"])
    return found


def test_agents_are_told_of_all_and_of_no_key() -> None:
    made = config_map(pool(), trust=Trust("cluster", "signer:443", "peers", "signers"))
    config = decode_config(made["data"]["agent.json"].encode()).config
    assert [(s.name, s.keyFile, s.tenant, s.memoryPercent, s.maxDepthTokens) for s in config.cacheNamespaces] == [
        ("public", "/kvpool/keys/public", "", 0, 0),
        ("acme", "/kvpool/keys/acme", "acme-inc", 20, 4096),
        ("umbrella", "/kvpool/keys/umbrella", "", 10, 0),
    ]
    assert (config.requestNamespace, config.gatewayKeyFile) == ("Signed", "/kvpool/keys/gateway.key")


@pytest.mark.parametrize(
    ("labels", "held"),
    [({}, ["umbrella"]), ({"tier": "gold"}, ["acme", "umbrella"]), ({"tier": "lead", "x": "gold"}, ["umbrella"])],
)
def test_a_pod_gets_the_keys_of_the_default_one_and_of_those_that_select_it_and_no_other(
    labels: dict[str, str], held: list[str]
) -> None:
    spec = injected(labels)
    files = {
        "public": ("kvpool-keys", "chat.public"),
        "acme": ("acme-key", "kv"),
        "umbrella": ("kvpool-keys", "chat.umbrella"),
        "gateway.key": ("gateway", "key"),
    }
    assert mounted(spec) == {name: files[name] for name in ("public", *held, "gateway.key")}
    agent = next(c for c in spec["initContainers"] if c["name"] == "kvpool-agent")
    assert {"name": "KVPOOL_CACHE_NAMESPACES", "value": ",".join(held)} in agent["env"]
    assert {"name": "kvpool-keys", "mountPath": "/kvpool/keys", "readOnly": True} in agent["volumeMounts"]


def test_the_keys_are_in_the_agent_alone_and_the_plug_in_knows_that_requests_may_choose() -> None:
    spec = injected({"tier": "gold"})
    others = [c for c in [*spec["initContainers"], *spec["containers"]] if c["name"] != "kvpool-agent"]
    assert "kvpool-keys" not in json.dumps(others) and "acme" not in json.dumps(others)
    (engine,) = spec["containers"]
    (variable,) = (v for v in engine["env"] if v["name"] == "KVPOOL_CLIENT_CONFIG")
    assert json.loads(variable["value"])["cacheNamespaces"] is True


def test_a_pool_without_cache_namespaces_mounts_nothing_of_it() -> None:
    spec = injected({}, pool(cacheNamespaces=[], **CLOSED))
    assert "kvpool-keys" not in json.dumps(spec) and "KVPOOL_CACHE_NAMESPACES" not in json.dumps(spec)


# -- keys that the controller makes ------------------------------------------------------------------


class Secrets:
    """The API server, as far as one Secret goes."""

    def __init__(
        self, data: dict[str, str] | None = None, *, ours: bool = True, refusal: Exception | None = None
    ) -> None:
        self.data, self.ours, self.refusal = data, ours, refusal
        self.written: list[tuple[dict[str, str], Entries | None]] = []

    def secret_entries(self, k8s_namespace: str, name: str) -> Entries | None:
        assert (k8s_namespace, name) == ("a", "kvpool-keys")
        return None if self.data is None else Entries(frozenset(self.data), self.ours, "7")

    def add_entries(self, k8s_namespace: str, name: str, data: dict[str, str], found: Entries | None) -> None:
        assert (k8s_namespace, name) == ("a", "kvpool-keys")
        if self.refusal:
            raise self.refusal
        self.written.append((data, found))
        self.data = {**(self.data or {}), **data}


def see(server: Secrets, made: KVCachePool | None = None) -> tuple[str, str]:
    return asyncio.run(see_to_keys(cast(Cluster, server), made or pool()))


def test_missing_keys_are_made_once_each_another_one_and_no_log_tells_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = Secrets()
    assert see(server) == see(server) == ("", "")
    ((data, found),) = server.written
    assert (data.keys(), found) == ({"chat.public", "chat.umbrella"}, None)
    keys = {parse_keys(base64.b64decode(value)) for value in data.values()}
    assert len(keys) == 2 and all(len(key) == 32 for (key,) in keys)
    for value in data.values():
        assert value not in caplog.text and base64.b64decode(value).decode().strip() not in caplog.text
    assert "chat.public" in caplog.text


def test_what_is_there_stays_and_what_is_missing_is_added_to_the_secret_as_it_was_found() -> None:
    server = Secrets({"chat.public": "theirs", "other.x": "x"})
    assert see(server) == ("", "")
    ((data, found),) = server.written
    assert data.keys() == {"chat.umbrella"} and found is not None and found.version == "7"
    assert server.data is not None and server.data["chat.public"] == "theirs"


def test_nobody_elses_secret_is_touched_and_a_refusal_is_told() -> None:
    server = Secrets({}, ours=False)
    reason, sentence = see(server)
    assert reason == "NameTaken" and "left alone" in sentence and server.written == []
    assert see(Secrets(refusal=RefusedError("quota")))[0] == "ObjectsRefused"
    assert see(Secrets({}, refusal=ApiException(status=409))) == ("", "")
    with pytest.raises(ApiException):
        see(Secrets(refusal=ApiException(status=500)))


def test_a_pool_without_managed_keys_asks_for_no_secret() -> None:
    named = [{"name": "public", "keySecretRef": {"name": "mine"}}]
    for made in (pool(cacheNamespaces=named, **CLOSED), pool(cacheNamespaces=[], **CLOSED)):
        assert asyncio.run(see_to_keys(cast(Cluster, object()), made)) == ("", "")
