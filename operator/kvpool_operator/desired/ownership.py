"""Whose an object is that lies where one of the pool's should: made already, to be made (again), or another's.

The pool's objects are its dependents by ownerReferences, so deleting a pool needs neither a finalizer nor the
controller. An object that carries the pool's label and nobody else's ownership is the pool's, though its reference is
missing or names a former pool of the same name: `kvpool inject` prints such ones. Everything else is another's, and is
never overwritten.
"""

from collections.abc import Mapping
from typing import Any, Literal

from kvpool_contract.names import API_GROUP, POOL_LABEL
from kvpool_operator.desired.pool import API_VERSION, KIND

Verdict = Literal["made", "make", "another's"]


def owned(wanted: Mapping[str, Any], pool: Mapping[str, Any]) -> dict[str, Any]:
    """The object as a dependent of the pool; pool: metadata as the API server keeps it. It does not hold the pool's
    deletion up, and goes after it."""
    reference = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": pool["name"],
        "uid": pool["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {**wanted, "metadata": {**wanted["metadata"], "ownerReferences": [reference]}}


def judge(found: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> Verdict:
    """What to do about an owned object, given what lies in its place."""
    if found is None:
        return "make"
    metadata, pool = found["metadata"], wanted["metadata"]["labels"][POOL_LABEL]
    if (metadata.get("labels") or {}).get(POOL_LABEL) != pool:
        return "another's"
    for reference in metadata.get("ownerReferences") or []:
        ours = reference["kind"] == KIND and reference["apiVersion"].startswith(f"{API_GROUP}/")
        if reference.get("controller") and not (ours and reference["name"] == pool):
            return "another's"
    return "made" if covers(found, wanted) else "make"


def covers(found: Any, wanted: Any) -> bool:
    """Whether `found` says everything that `wanted` does; what others have added to it is theirs."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(k in found and covers(found[k], v) for k, v in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and all(any(covers(f, w) for f in found) for w in wanted)
    return bool(found == wanted)
