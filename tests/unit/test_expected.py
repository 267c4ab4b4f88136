"""The format to expect: what most ready members of the same template have. And the template's hash itself."""

import copy
import random
from typing import Any

import pytest

from kvpool_agent.policy.expected import Expected, Told, expected_format
from kvpool_contract.names import TEMPLATE_VARIABLE
from kvpool_operator.desired.pool import read_pool
from kvpool_operator.inject import Injected, Settings, inject
from kvpool_operator.inject.revision import template_hash


def told(name: str, found: str, template: str = "t", state: str = "Ready(warm)", slot: int = 8) -> Told:
    return Told(name, template, state, found, slot)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([], None),
        ([told("a", "f")], Expected("f", 8, ("a",))),
        ([told("a", "f", state="Ready(degraded)")], Expected("f", 8, ("a",))),
        ([told("a", "g"), told("b", "f"), told("c", "f")], Expected("f", 8, ("b", "c"))),
        ([told("a", "f", state="Warming"), told("b", "f", state="Starting")], None),
        ([told("a", "f", template="u"), told("b", "f", template="")], None),
        ([told("a", "f", template="u"), told("b", "f", template="u"), told("c", "g")], Expected("g", 8, ("c",))),
        ([told("a", "")], None),
        ([told("a", "g"), told("b", "f")], Expected("f", 8, ("b",))),
        ([told("a", "f", slot=4), told("b", "f"), told("c", "f")], Expected("f", 8, ("b", "c"))),
    ],
)
def test_what_most_ready_members_of_the_template_have(members: list[Told], expected: Expected | None) -> None:
    for _ in range(3):
        random.shuffle(members)
        assert expected_format("t", members) == expected


def test_an_agent_without_a_template_expects_nothing() -> None:
    assert expected_format("", [told("a", "f", template="")]) is None


def pod(name: str, **spec: Any) -> dict[str, Any]:
    """A pod of a StatefulSet as the API server submits it, with what is each pod's own."""
    token = f"kube-api-access-{name}x"
    return {
        "hostname": name,
        "subdomain": "llm",
        "tolerations": [{"key": name}],
        "volumes": [
            {"name": "models", "persistentVolumeClaim": {"claimName": f"models-{name}"}},
            {"name": token, "projected": {}},
        ],
        "containers": [
            {
                "name": "engine",
                "image": "example.test/vllm:1",
                "args": ["--model", "m"],
                "volumeMounts": [
                    {"name": "models", "mountPath": "/models"},
                    {"name": token, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
                ],
            }
        ],
        **spec,
    }


def test_pods_of_one_revision_have_the_same_hash_and_those_of_another_another() -> None:
    one = template_hash(pod("llm-0"), "{}")
    assert one == template_hash(pod("llm-1"), "{}") == template_hash(pod("llm-12"), "{}")
    changed = pod("llm-0")
    changed["containers"][0]["args"] = ["--model", "other"]
    image = pod("llm-0")
    image["containers"][0]["image"] = "example.test/vllm:2"
    claim = pod("llm-0")
    claim["volumes"][0]["persistentVolumeClaim"]["claimName"] = "models-of-another"
    init = pod("llm-0", initContainers=[{"name": "download", "args": ["m2"]}])
    others = {template_hash(one, "{}") for one in (changed, image, claim, init)} | {template_hash(pod("llm-0"), "{1}")}
    assert len(others | {one}) == 6


def test_the_agents_container_carries_the_hash_of_what_was_submitted() -> None:
    pool = read_pool({"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": {"name": "chat"}})

    def carried(spec: dict[str, Any]) -> str:
        before = copy.deepcopy(spec)
        result = inject({"spec": spec}, pool, Settings(image="i"))
        assert isinstance(result, Injected) and spec == before
        (agent,) = (c for c in result.template["spec"]["initContainers"] if c["name"] == "kvpool-agent")
        (value,) = (e["value"] for e in agent["env"] if e["name"] == TEMPLATE_VARIABLE)
        return str(value)

    assert carried(pod("llm-0")) == carried(pod("llm-1"))
    changed = pod("llm-0")
    changed["containers"][0]["args"] = []
    assert carried(changed) != carried(pod("llm-0"))
