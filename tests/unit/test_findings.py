"""What `kvpool check` says of a cluster, a pool and a pod."""

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from agent_status import agent

from kvpool_cli import inspection
from kvpool_cli.findings import ClusterFacts, Denied, Finding, of_cluster, of_pod, of_pool
from kvpool_cli.members import Answer
from kvpool_contract.reasons import explain
from kvpool_contract.status import AgentStatus, Peer, Warm
from kvpool_operator.certificates import authority
from kvpool_operator.desired.links import ACQUAINTED_SECONDS, APART_SECONDS, Links, unreached

REPOSITORY = Path(__file__).resolve().parents[2]
CRD = yaml.safe_load((REPOSITORY / "crds" / "kvcachepools.kvpool.io.yaml").read_text())
NOW = datetime(2026, 6, 1, tzinfo=UTC)
POOL = {
    "apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool",
    "metadata": {"name": "chat", "namespace": "llm", "generation": 2}, "spec": {}, "status": {"observedGeneration": 2},
}  # fmt: skip


def bundle(life: timedelta) -> str:
    pair = authority.new_authority("kvpool", NOW, life)
    return base64.b64encode(pair.certificate).decode()


def registration(ca: str = "", **selector: Any) -> dict[str, Any]:
    expressions = [{"key": "kubernetes.io/metadata.name", **each} for each in selector.get("names", ())]
    webhook = {"clientConfig": {"caBundle": ca}, "namespaceSelector": {"matchExpressions": expressions}}
    return {"webhooks": [webhook, webhook]}


def node(name: str, version: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"nodeInfo": {"kubeletVersion": version}}}


FIT = ClusterFacts(
    version={"major": "1", "minor": "34", "gitVersion": "v1.34.4"},
    nodes=[node("a", "v1.34.4"), node("b", "v1.29.0-eks-1")],
    definition=CRD,
    registration=registration(bundle(timedelta(days=365))),
    webhook_slices=[{"endpoints": [{"conditions": {"ready": True}}, {"conditions": {"ready": True}}]}],
    deployments=[{"status": {"readyReplicas": 1}}],
    tried={"metadata": {"namespace": "llm", "annotations": {"kvpool.io/skipped": "pool_unknown"}}},
)


def verdicts(findings: list[Finding]) -> list[str]:
    return [finding.verdict for finding in findings]


def of(facts: ClusterFacts) -> list[Finding]:
    return list(of_cluster(facts, NOW.timestamp()))


def test_a_fit_cluster_has_no_problem() -> None:
    assert verdicts(of(FIT)) == ["ok"] * 7
    assert str(of(FIT)[0]) == "ok       The API server is v1.34.4."


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": {"major": "1", "minor": "28+", "gitVersion": "v1.28.1"}}, "v1.28.1. The agent is a native"),
        ({"nodes": [node("a", "v1.28.9"), node("b", "v1.30.0")]}, "1 of 2 nodes are older than Kubernetes 1.29: a ("),
        ({"definition": None}, "The API server does not know KVCachePool. Install the chart"),
        ({"registration": None}, "asks no webhook of kvpool about pods. Install the chart."),
        ({"registration": registration("")}, "caBundle is empty"),
        ({"registration": registration("bm9uZQ==")}, "caBundle can't be read"),
        ({"registration": registration(bundle(timedelta(days=9)))}, "ends on 2026-06-10, in 9 days"),
        ({"webhook_slices": [{"endpoints": [{"conditions": {"ready": False}}]}]}, "No webhook is ready"),
        ({"deployments": [{"status": {}}]}, "No controller is ready"),
        ({"tried": {"metadata": {"namespace": "llm"}}}, "A labelled pod in namespace llm is not looked at"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence_with_a_fix(changes: dict[str, Any], words: str) -> None:
    found = of(replace(FIT, **changes))
    (wrong,) = (finding for finding in found if finding.verdict != "ok")
    assert wrong.verdict == "problem" and words in wrong.sentence and wrong.sentence.endswith(".")


def test_an_older_definition_names_what_it_lacks() -> None:
    older = yaml.safe_load(yaml.safe_dump(CRD))
    spec = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del spec["loading"], spec["agent"]["properties"]["image"]
    (wrong,) = (f for f in of(replace(FIT, definition=older)) if f.verdict != "ok")
    assert "lacks spec.loading, spec.agent.image. Apply crds/." in wrong.sentence


def test_what_may_not_be_read_is_neither_good_nor_bad() -> None:
    no = Denied("403 Forbidden")
    found = of(replace(FIT, nodes=no, definition=no, registration=no, webhook_slices=no, deployments=no, tried=no))
    assert verdicts(found) == ["ok", *["unknown"] * 6]
    assert all("(403 Forbidden)" in finding.sentence for finding in found[1:])


def injected(name: str) -> dict[str, Any]:
    agent_container = {"name": "kvpool-agent", "image": "i", "restartPolicy": "Always"}
    return {
        "metadata": {
            "name": name, "uid": name, "namespace": "llm", "labels": {"kvpool.io/pool": "chat"},
            "annotations": {"kvpool.io/originals": "{}"},
        },
        "spec": {"containers": [{"name": "engine"}], "initContainers": [agent_container]},
    }  # fmt: skip


def answer(name: str, *said: str, live: tuple[str, ...] = (), **more: Any) -> Answer:
    peers = [Peer(address=f"{other}:1", live=True, member=other) for other in live]
    return Answer(name, agent(*said, **{"member": name, "peers": peers} | more))


def test_a_sound_pool_and_its_members() -> None:
    answers = [answer("a", live=("b",)), answer("b", "Ready(degraded)", "nothing_to_warm", live=("a",))]
    found = list(of_pool(POOL, [injected("a"), injected("b")], answers, 1000.0))
    assert verdicts(found) == ["ok", "ok"]
    assert "nothing_to_warm: No peer" in found[1].sentence


def test_what_is_wrong_with_a_pool() -> None:
    broken = {**POOL, "spec": {"paused": "yes"}, "status": {
        "observedGeneration": 1,
        "conditions": [{"type": "Ready", "status": "False", "message": "1 of 2 is bare."}],
    }}  # fmt: skip
    answers = [
        answer("a", "Ready(degraded)", "warm_deadline", warm=Warm(planned_blocks=9, loaded_blocks=4)),
        answer("b", "Warming", attached=False),
        Answer("c", error="no connection"),
    ]
    pods = [injected(name) for name in "abc"]
    found = [f.sentence for f in of_pool(broken, pods, answers, 1000.0) if f.verdict == "problem"]
    assert [sentence.partition(". ")[0][:70] for sentence in found] == [
        "pool field spec.paused: expected `bool`, got `str`; correct the value.",
        "The controller has not looked at the pool as it is now",
        "Ready: 1 of 2 is bare.",
        "a: Ready(degraded), 4 of 9 blocks of the hot set",
        "b: Warming, 0 of 0 blocks of the hot set; its engine has not attached ",
        "c: agent_unreachable: The agent of this member does not answer",
        "a does not reach b",
        "b does not reach a",
    ]
    assert explain("warm_deadline") in found[3]
    (empty,) = (f.sentence for f in of_pool(POOL, [], [], 1000.0))
    assert empty.startswith("No pod carries the label kvpool.io/pool=chat.")


def bare(labels: dict[str, str] | None = None, skipped: str = "", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "x", "namespace": "llm", "labels": {"kvpool.io/pool": "chat"} if labels is None else labels,
            "annotations": {"kvpool.io/skipped": skipped} if skipped else {},
        },
        "spec": {"containers": [{"name": "engine", "image": "vllm:1"}], **spec},
    }  # fmt: skip


EVERYWHERE = registration(names=[{"operator": "NotIn", "values": ["kube-system"]}])


@pytest.mark.parametrize(
    ("pod", "pool", "registered", "said"),
    [
        (bare({}), POOL, EVERYWHERE, ["x carries no label kvpool.io/pool"]),
        (bare(), POOL, EVERYWHERE, ["was never looked at. not_injected: ", "would join pool chat, with container"]),
        (bare(), POOL, None, ["has no webhook of kvpool", "would join pool chat"]),
        (bare(), POOL, registration(names=[{"operator": "NotIn", "values": ["llm"]}]), ["left out by", "would join"]),
        (bare(), POOL, registration(names=[{"operator": "In", "values": ["other"]}]), ["left out by", "would join"]),
        (bare(), None, EVERYWHERE, ["not_injected: ", "pool_unknown: "]),
        (bare(skipped="host_network"), POOL, EVERYWHERE, ["without an agent. host_network: ", "would join"]),
        (
            bare(hostNetwork=True, containers=[{"name": "engine", "ports": [{"containerPort": 7700}]}]),
            POOL, EVERYWHERE, ["not_injected", "would start bare. "],
        ),
    ],
)  # fmt: skip
def test_why_a_pod_has_no_agent(pod: dict[str, Any], pool: Any, registered: Any, said: list[str]) -> None:
    found = list(of_pod(pod, pool, registered, None))
    assert len(found) == len(said)
    for finding, words in zip(found, said, strict=True):
        assert words in finding.sentence


@pytest.mark.parametrize(("pool", "pod", "asked"), [("chat", "", ["a", "b"]), ("", "b", ["b"])])
def test_of_a_pool_all_pods_are_asked_and_of_a_pod_that_one_alone(
    monkeypatch: pytest.MonkeyPatch, pool: str, pod: str, asked: list[str]
) -> None:
    objects = SimpleNamespace(
        k8s_namespace="llm", pool=lambda _: POOL, pods=lambda _: [injected("b"), injected("a")],
        pod=lambda name: injected(name), registration=lambda: None,
    )  # fmt: skip
    calls: list[tuple[list[str], str]] = []

    def ask(names: list[str], k8s_namespace: str, _: str) -> list[Answer]:
        calls.append((names, k8s_namespace))
        return [answer(name) for name in names]

    monkeypatch.setattr(inspection, "Objects", lambda *_: objects)
    monkeypatch.setattr(inspection, "ask_pods", ask)
    found = inspection.inspect(pool, pod, "llm", "")
    assert calls == [(asked, "llm")]
    assert sum("Ready(warm)" in finding.sentence for finding in found) == len(asked)


def test_a_pod_with_an_agent_says_how_it_is() -> None:
    found = list(
        of_pod(injected("a"), POOL, EVERYWHERE, answer("a", "Ready(degraded)", "not_attached", attached=False))
    )
    assert verdicts(found) == ["ok", "problem"]
    assert "not_attached: The engine is healthy" in found[1].sentence


def member(name: str, *live: str, started: float = 0.0) -> AgentStatus:
    return answer(name, live=live, started_at=started).status or agent()


def test_members_that_do_not_reach_each_other_are_told_after_a_while() -> None:
    now = ACQUAINTED_SECONDS
    one_way = [member("a"), member("b", "a"), member("c", "a", "b")]
    assert unreached(one_way, now) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert unreached([member("a", started=1.0), member("b", "a")], now) == []  # it has just started
    links = Links()
    assert links.apart("p", one_way, now) == []
    assert links.apart("q", one_way, now + APART_SECONDS) == []  # another pool
    healed = [member("a", "b"), member("b", "a", "c"), member("c", "a", "b")]
    assert links.apart("p", healed, now + APART_SECONDS) == [("a", "c")]
    assert links.apart("p", one_way, now + APART_SECONDS + 1) == [("a", "c")]  # the others begin anew
