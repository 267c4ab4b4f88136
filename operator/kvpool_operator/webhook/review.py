"""One admission review: the pod as it would be created in, the answer out. Pure.

The answer is never an obstacle of its own: a pod that can't join is created as it is, with the reason in an
annotation and in a warning to whoever created it. Only a pod that says `kvpool.io/require: "true"` is refused then.
"""

import base64
import copy
import json
from dataclasses import dataclass
from typing import Any

import jsonpatch

from kvpool_contract.names import POOL_LABEL, REQUIRE_ANNOTATION, SKIPPED_ANNOTATION
from kvpool_contract.reasons import explain
from kvpool_operator.desired.pool import KVCachePool, PoolError
from kvpool_operator.inject import Injected, Settings, inject, is_injected, restore

WARNING_LENGTH = 256  # the API server cuts longer ones


class NotAReviewError(ValueError):
    """The request is no admission review of version v1."""


@dataclass(frozen=True)
class Asked:
    """`pool`: name of the pool in the pod's label; empty where the pod has none or is none."""

    uid: str
    k8s_namespace: str
    pod: dict[str, Any]
    pool: str


@dataclass(frozen=True)
class Unusable:
    """No pool to join: a reason's word, and for an invalid pool the sentence about it."""

    reason: str
    sentence: str = ""


@dataclass(frozen=True)
class Answer:
    """`outcome`: injected, skipped, denied or unchanged. `reason`: of the middle two."""

    review: dict[str, Any]
    outcome: str
    reason: str = ""


def read(document: Any) -> Asked:
    """What is asked; raises NotAReviewError."""
    request = document.get("request") if isinstance(document, dict) else None
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise NotAReviewError("the body is no AdmissionReview with a request; this is the webhook of kvpool's injector")
    kind, pod = request.get("kind") or {}, request.get("object")
    if kind.get("kind") != "Pod" or request.get("operation") != "CREATE" or not isinstance(pod, dict):
        return Asked(request["uid"], "", {}, "")
    labels = (pod.get("metadata") or {}).get("labels") or {}
    return Asked(request["uid"], str(request.get("namespace") or ""), pod, str(labels.get(POOL_LABEL) or ""))


def decide(asked: Asked, pool: KVCachePool | Unusable, settings: Settings) -> Answer:
    """The answer for a labelled pod."""
    if isinstance(pool, Unusable):
        if is_injected(asked.pod):  # by the command line, where no pool has to be in the cluster
            return Answer(allow(asked.uid), "unchanged")
        return _skip(asked, pool)
    pod = copy.deepcopy(asked.pod)
    ((pod.get("metadata") or {}).get("annotations") or {}).pop(SKIPPED_ANNOTATION, None)
    try:
        result = inject(pod, pool, settings)
    except PoolError as error:
        return _skip(asked, Unusable("pool_invalid", str(error)))
    if isinstance(result, Injected):
        warning = f"kvpool: {explain(result.withheld)}" if result.withheld else ""
        return Answer(allow(asked.uid, _patch(asked.pod, result.template), warning), "injected")
    return _skip(asked, Unusable(result.reason))


def requires_pool(pod: dict[str, Any]) -> bool:
    """Whether the pod says that it must not start without the pool."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    return bool(annotations.get(REQUIRE_ANNOTATION) == "true")


def allow(uid: str, patch: str = "", warning: str = "") -> dict[str, Any]:
    """An answer that lets the pod be created."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if patch:
        response |= {"patchType": "JSONPatch", "patch": patch}
    if warning:
        response["warnings"] = [warning[:WARNING_LENGTH]]
    return _review(response)


def _skip(asked: Asked, why: Unusable) -> Answer:
    sentence = f"{explain(why.reason)} {why.sentence}".rstrip()
    if requires_pool(asked.pod):
        message = f"the pod requires kvpool ({REQUIRE_ANNOTATION}) and can't join: {sentence}"
        status = {"code": 403, "reason": "Forbidden", "message": message}
        return Answer(_review({"uid": asked.uid, "allowed": False, "status": status}), "denied", why.reason)
    warning = f"kvpool: the pod starts without the pool: {sentence}"
    if why.reason == "mirror_pod":
        return Answer(allow(asked.uid, warning=warning), "skipped", why.reason)
    after = restore(asked.pod)
    metadata = after["metadata"] = after.get("metadata") or {}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), SKIPPED_ANNOTATION: why.reason}
    return Answer(allow(asked.uid, _patch(asked.pod, after), warning), "skipped", why.reason)


def _patch(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Empty where there is nothing to change."""
    operations = jsonpatch.make_patch(before, after).patch
    return base64.b64encode(json.dumps(operations).encode()).decode() if operations else ""


def _review(response: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
