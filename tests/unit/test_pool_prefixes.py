"""`publication.prefixes`: what agents are told of them, where their texts come from, and the condition that says why
not all are in force."""

import asyncio
from typing import Any, cast

import pytest
from agent_status import agent

from kvpool_contract.config import decode_config, encode_config
from kvpool_contract.prefixes import MAX_TEXT, MAX_TOKENS, TOO_LONG, Prefix
from kvpool_contract.reasons import explain
from kvpool_contract.status import ConfigInForce, Declared
from kvpool_operator.controller.agents import Agents
from kvpool_operator.controller.cluster import Cluster, Document, Key
from kvpool_operator.controller.prefixes import with_config_maps
from kvpool_operator.controller.reconcile import Reconciler
from kvpool_operator.desired.events import pool_events
from kvpool_operator.desired.objects import agent_config
from kvpool_operator.desired.pool import KVCachePool, read_pool
from kvpool_operator.desired.status import Member, Observed, pool_status

METADATA = {"name": "chat", "namespace": "team-a", "uid": "u"}


def in_map(name: str, key: str = "system") -> dict[str, Any]:
    return {"configMapKeyRef": {"name": name, "key": key}}


def pool(*prefixes: dict[str, Any], policy: str = "Declared") -> KVCachePool:
    metadata = {"name": "chat", "namespace": "team-a"}
    spec = {"publication": {"policy": policy, "prefixes": list(prefixes)}}
    return read_pool({"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": metadata, "spec": spec})


class Maps:
    """A cluster with these ConfigMaps in one namespace."""

    def __init__(self, **data: dict[str, str] | None) -> None:
        self.data, self.read_names = data, list[str]()

    def read(self, wanted: Document) -> Document | None:
        assert (wanted["kind"], wanted["metadata"]["namespace"]) == ("ConfigMap", "team-a")
        name = wanted["metadata"]["name"]
        self.read_names.append(name)
        return {"data": self.data[name]} if name in self.data else None


def resolved(maps: Maps, *prefixes: dict[str, Any]) -> tuple[tuple[Prefix, ...], str]:
    found, problem = asyncio.run(with_config_maps(cast(Cluster, maps), pool(*prefixes)))
    return agent_config(found).declaredPrefixes, problem


def test_texts_come_from_the_config_maps_in_their_place_each_read_once() -> None:
    maps = Maps(prompts={"system": "You are\n", "tools": "[]"})
    given = [{"text": "a"}, in_map("prompts"), {"tokenIds": [1, 2]}, in_map("prompts", "tools")]
    expected = Prefix(text="a"), Prefix(text="You are\n"), Prefix(tokenIds=(1, 2)), Prefix(text="[]")
    assert resolved(maps, *given) == (expected, "")
    assert maps.read_names == ["prompts"]


def test_without_config_maps_none_is_read() -> None:
    maps = Maps()
    assert (resolved(maps, {"text": "a"}), maps.read_names) == (((Prefix(text="a"),), ""), [])


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({}, "there is no ConfigMap prompts; create it, or correct configMapKeyRef.name"),
        ({"prompts": None}, "ConfigMap prompts has no text in the entry system; write one there"),
        ({"prompts": {"system": ""}}, "ConfigMap prompts has no text in the entry system; write one there"),
        ({"prompts": {"system": "b" * MAX_TEXT}}, f"with the text of ConfigMap prompts: {TOO_LONG}"),
    ],
)
def test_a_text_that_can_not_be_had_is_named_and_the_others_are_declared(data: Any, problem: str) -> None:
    told, found = resolved(Maps(**data), {"text": "a"}, in_map("prompts"))
    assert (told, found) == ((Prefix(text="a"),), f"spec.publication.prefixes[1]: {problem}.")


def test_the_longest_prefixes_fit_into_a_config_map() -> None:
    longest = pool({"text": "\U0001f600" * MAX_TEXT}, {"tokenIds": [2**31 - 1] * MAX_TOKENS})
    assert len(encode_config(agent_config(longest))) < 1_000_000


class OnePool(Maps):
    """A cluster with a pool that nobody has joined, as far as a pass needs it."""

    def __init__(self, spec: dict[str, Any], **data: dict[str, str] | None) -> None:
        super().__init__(**data)
        self.spec, self.documents, self.statuses = spec, list[str](), list[Document]()

    def read_pool(self, _: Key) -> Document:
        frame = {"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": {**METADATA, "generation": 1}}
        return {**frame, "spec": {"transport": {"tls": {"mode": "Disabled"}}, **self.spec}}

    def read(self, wanted: Document) -> Document | None:
        return super().read(wanted) if wanted["metadata"]["name"] == "prompts" else None

    def apply(self, wanted: Document) -> None:
        self.documents += wanted.get("data", {}).values()

    def pods(self, _: Key) -> list[Any]:
        return []

    def create_event(self, _: Document) -> bool:
        return True

    def write_status(self, _: Document, status: Document) -> None:
        self.statuses.append(status)

    def passed(self) -> tuple[tuple[Prefix, ...], tuple[str, str, str] | None]:
        """What agents are told of after a pass, and the condition."""
        self.documents.clear()
        assert asyncio.run(Reconciler(cast(Cluster, self), Agents()).once(("team-a", "chat")))
        return decode_config(self.documents[0].encode()).config.declaredPrefixes, condition(self.statuses[-1])


def test_each_pass_puts_what_the_config_map_says_into_the_agents_configuration() -> None:
    cluster = OnePool({"publication": {"policy": "Declared", "prefixes": [{"text": "a"}, in_map("prompts")]}})
    said, told = cluster.passed()
    assert (said, told and told[:2]) == ((Prefix(text="a"),), ("False", "PrefixesNotFound"))
    cluster.data["prompts"] = {"system": "You are"}
    said, told = cluster.passed()
    assert (said, told and told[:2]) == ((Prefix(text="a"), Prefix(text="You are")), ("False", "NoMembers"))


def test_a_pass_over_a_pool_of_another_policy_says_nothing_of_prefixes() -> None:
    assert OnePool({}).passed() == ((), None)


# -- what is said of them ----------------------------------------------------------------------------


def seen(*declared: Declared | None, problem: str | None = "", **config: Any) -> dict[str, Any]:
    members = [
        Member(name, f"{name}-uid", error="" if one else "silent", status=one and agent(declared=one, **config))
        for name, one in zip("abc", declared, strict=False)
    ]
    return pool_status("chat", 1, Observed(members, prefixes=problem), None, "2026-01-01T00:00:00Z")


def condition(status: dict[str, Any]) -> tuple[str, str, str] | None:
    found = [c for c in status["conditions"] if c["type"] == "PrefixesDeclared"]
    return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else None


def test_with_another_policy_nothing_is_said_of_them() -> None:
    assert condition(seen(Declared(), problem=None)) is None


def test_all_know_all_and_the_condition_says_how_many_blocks_that_is() -> None:
    sentence = "Every agent that answers, of 3, may tell of 20 blocks of 2 prefixes or 40 blocks of 2 prefixes."
    assert condition(seen(Declared(2, 2, 40), Declared(2, 2, 20), None)) == ("True", "AllDeclared", sentence)


def test_what_a_config_map_lacks_comes_first_and_the_pool_is_no_worse_for_it() -> None:
    status = seen(Declared(1, 1, 4), problem="there is no ConfigMap prompts.")
    assert condition(status) == ("False", "PrefixesNotFound", "there is no ConfigMap prompts.")
    (event,) = [e for e in pool_events(METADATA, None, status, []) if e.reason == "PrefixesNotFound"]
    assert (event.type, event.message) == ("Warning", "there is no ConfigMap prompts.")
    assert [c["status"] for c in status["conditions"] if c["type"] == "Ready"] == ["True"]


def test_a_member_that_can_not_tell_of_all_is_named_with_its_reason() -> None:
    told = condition(seen(Declared(2, 2, 40), Declared(2, 1, 20, "no_tokenizer", "the engine's port answered 404")))
    sentence = f"1 of 2: b. {explain('no_tokenizer')} (the engine's port answered 404)"
    assert told == ("False", "PrefixesUnresolved", sentence)


def test_a_member_that_does_not_know_them_yet_is_no_fault() -> None:
    for resolving in (Declared(2, 1, 20), Declared()):
        told = condition(seen(Declared(2, 2, 40), resolving))
        assert told == ("False", "PrefixesResolving", "1 of 2 do not know them yet: b.")


def test_a_pod_of_another_policy_is_to_be_made_anew() -> None:
    told = condition(seen(Declared(), config=ConfigInForce(needs_new_pods=["publication.policy"])))
    sentence = "1 of 1: a. Their pods were made with another policy: make them anew."
    assert told == ("False", "PrefixesUnresolved", sentence)
