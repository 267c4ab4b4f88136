"""Admission reviews in, answers out, without a server."""

import base64
import json
from typing import Any

import jsonpatch
import pytest

from kvpool_contract.reasons import REASONS
from kvpool_operator.desired.pool import KVCachePool
from kvpool_operator.inject import Injected, Settings, inject
from kvpool_operator.webhook.pools import usable
from kvpool_operator.webhook.review import Answer, Asked, NotAReviewError, Unusable, decide, read

SETTINGS = Settings(default_image="example.test/agent:1")
REQUIRE = {"kvpool.io/require": "true"}


def pool(**spec: Any) -> KVCachePool:
    """As it comes from the API server."""
    metadata = {"name": "chat", "namespace": "team-a", "uid": "1", "resourceVersion": "7", "generation": 1}
    found = usable(
        {
            "apiVersion": "kvpool.io/v1alpha1",
            "kind": "KVCachePool",
            "metadata": metadata,
            "spec": spec,
            "status": {"phase": "Ready"},
        }
    )
    assert isinstance(found, KVCachePool)
    return found


def pod(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """As in the review of a ReplicaSet's pod: no name, no namespace, no uid."""
    metadata: dict[str, Any] = {"generateName": "chat-", "labels": {"app": "chat", "kvpool.io/pool": "chat"}}
    if annotations is not None:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": {"containers": [{"name": "engine", "image": "vllm:1"}], **spec}}


def review(given: Any, kind: str = "Pod", operation: str = "CREATE") -> dict[str, Any]:
    request = {"uid": "u", "kind": {"kind": kind}, "operation": operation, "namespace": "team-a", "object": given}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def decided(given: dict[str, Any], found: KVCachePool | Unusable) -> tuple[Answer, dict[str, Any]]:
    """The answer, and the pod that the API server would create."""
    asked = read(review(given))
    assert (asked.k8s_namespace, asked.pool) == ("team-a", "chat")
    answer = decide(asked, found, SETTINGS)
    response = answer.review["response"]
    assert (response["uid"], "patchType" in response) == ("u", "patch" in response)
    operations = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    return answer, jsonpatch.apply_patch(given, operations)


def test_a_pod_joins_as_the_injector_says() -> None:
    answer, after = decided(pod(), pool())
    expected = inject(pod(), pool(), SETTINGS)
    assert isinstance(expected, Injected)
    assert (answer.outcome, answer.reason, after) == ("injected", "", expected.template)
    assert "warnings" not in answer.review["response"]


def test_what_the_agent_is_not_given_is_said_to_who_makes_the_pod() -> None:
    asking = pool(transport={"rdma": {"memlock": "IPCLock", "allowUnencrypted": True}})
    answer, after = decided(pod(), asking)
    expected = inject(pod(), asking, SETTINGS)
    assert isinstance(expected, Injected) and expected.withheld == "rdma_ipc_lock_namespace"
    assert (answer.outcome, answer.reason, after) == ("injected", "", expected.template)
    (warning,) = answer.review["response"]["warnings"]
    assert warning.startswith("kvpool: rdma_ipc_lock_namespace: The agent has no IPC_LOCK: ")
    assert "pod-security.kubernetes.io/enforce=privileged" in warning


def test_asked_again_about_its_own_work_it_changes_nothing() -> None:
    _, after = decided(pod(), pool())
    answer, again = decided(after, pool())
    assert (answer.outcome, again) == ("injected", after)
    assert "patch" not in answer.review["response"]


@pytest.mark.parametrize(
    ("given", "found", "reason"),
    [
        (pod(), Unusable("pool_unknown"), "pool_unknown"),
        (pod(), Unusable("pool_unread"), "pool_unread"),
        (pod(), usable({"kind": "KVCachePool", "metadata": {"name": "chat"}}), "pool_invalid"),
        (pod(hostNetwork=True), pool(), "host_network"),
        (pod(annotations={}, hostNetwork=True), pool(), "host_network"),
    ],
)
def test_a_pod_that_cannot_join_starts_bare_with_the_reason(given: Any, found: Any, reason: str) -> None:
    answer, after = decided(given, found)
    assert (answer.outcome, answer.reason) == ("skipped", reason)
    assert after["spec"] == given["spec"]
    assert after["metadata"].pop("annotations") == {"kvpool.io/skipped": reason}
    assert after["metadata"] == {name: v for name, v in given["metadata"].items() if name != "annotations"}
    (warning,) = answer.review["response"]["warnings"]
    assert warning.startswith(f"kvpool: the pod starts without the pool: {reason}: {REASONS[reason].sentence[:40]}")
    assert len(warning) <= 256


def test_an_invalid_pool_says_what_is_wrong() -> None:
    wrong = {"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": {"name": "chat"}}
    found = usable({**wrong, "spec": {"engine": {"port": 0}}})
    assert isinstance(found, Unusable)
    assert found.sentence.startswith("pool field spec.engine.port: ")
    nobody = decide(read(review(pod())), pool(), Settings())
    assert (nobody.outcome, nobody.reason) == ("skipped", "pool_invalid")


@pytest.mark.parametrize("found", [Unusable("pool_unknown"), Unusable("pool_invalid", "x")])
def test_a_pod_that_requires_the_pool_is_denied_without_it(found: Unusable) -> None:
    answer, _ = decided(pod(annotations=REQUIRE), found)
    response = answer.review["response"]
    assert (answer.outcome, answer.reason, response["allowed"]) == ("denied", found.reason, False)
    assert response["status"]["code"] == 403
    assert response["status"]["message"].startswith(
        f"the pod requires kvpool (kvpool.io/require) and can't join: {found.reason}: "
    )
    assert decided(pod(annotations={"kvpool.io/require": "false"}), found)[0].outcome == "skipped"
    assert decided(pod(annotations=REQUIRE), pool())[0].outcome == "injected"


def test_a_pod_that_another_webhook_has_made_impossible_is_bare_again() -> None:
    _, after = decided(pod(), pool())
    answer, bare = decided({**after, "spec": {**after["spec"], "hostNetwork": True}}, pool())
    assert (answer.outcome, answer.reason) == ("skipped", "host_network")
    assert bare == pod(annotations={"kvpool.io/skipped": "host_network"}, hostNetwork=True)


def test_an_old_reason_goes_when_the_pod_joins() -> None:
    assert (
        decided(pod(annotations={"kvpool.io/skipped": "pool_unknown"}), pool())[1]
        == decided(pod(annotations={}), pool())[1]
    )


def test_what_the_command_line_has_injected_needs_no_pool_in_the_cluster() -> None:
    given = inject(pod(annotations=REQUIRE), pool(), SETTINGS)
    assert isinstance(given, Injected)
    answer, after = decided(given.template, Unusable("pool_unknown"))
    assert (answer.outcome, after) == ("unchanged", given.template)


def test_the_mirror_of_a_static_pod_is_not_touched() -> None:
    given = pod(annotations={"kubernetes.io/config.mirror": "x"})
    answer, after = decided(given, pool())
    assert (answer.reason, after) == ("mirror_pod", given)


def test_what_is_no_new_labelled_pod_is_nobodys_business() -> None:
    assert read(review(pod(), kind="Job")) == Asked("u", "", {}, "")
    assert read(review(pod(), operation="UPDATE")) == Asked("u", "", {}, "")
    assert read(review(None)) == Asked("u", "", {}, "")
    assert read(review({"metadata": {}, "spec": {}})).pool == ""


@pytest.mark.parametrize("document", [None, [], "x", {}, {"request": 1}, {"request": {}}, {"request": {"uid": 1}}])
def test_what_is_no_review_is_told_so(document: Any) -> None:
    with pytest.raises(NotAReviewError):
        read(document)
