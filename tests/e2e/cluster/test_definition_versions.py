"""The definition and the operator are of two versions for a while, whichever is upgraded first; pools that were stored
meanwhile stay what they are."""

import contextlib
import copy
import json
from collections.abc import Iterator
from typing import Any

from cluster.controllers import Controller
from cluster.kube import wait_for
from cluster.pools import NAME, SECONDS, Pools

DEFINITION = "kvcachepools.kvpool.io"


def definition(pools: Pools) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pools.kubectl("get", "crd", DEFINITION, "-o", "json").stdout)
    return found


def properties(document: dict[str, Any], *path: str) -> dict[str, Any]:
    found = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name in path:
        found = found["properties"][name]
    fields: dict[str, Any] = found["properties"]
    return fields


@contextlib.contextmanager
def replaced(pools: Pools, document: dict[str, Any], field: str, *, known: bool) -> Iterator[None]:
    """While another definition lies in the cluster, by which a field of the spec is known or not; then this one's."""
    pools.kubectl("replace", "-f", "-", stdin=json.dumps(document))
    probe = {"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": {"name": "probe"}}
    try:
        wait_for(
            "the other definition",
            lambda: (field in pools.create_pool(probe, dry_run="All")["spec"]) == known,
            SECONDS,
        )
        yield
    finally:
        pools.install_crd()


def older(pools: Pools) -> dict[str, Any]:
    """Without things that a former version did not have: a part of the spec, a field of the status."""
    document = copy.deepcopy(definition(pools))
    del properties(document, "spec")["loading"]
    del properties(document, "spec", "agent")["updateStrategy"]
    del properties(document, "status")["configured"]
    return document


def newer(pools: Pools) -> dict[str, Any]:
    """With a part of the spec and a field of the status that this version does not know."""
    document = copy.deepcopy(definition(pools))
    part = {"type": "object", "default": {}, "properties": {"speed": {"type": "integer", "default": 7}}}
    properties(document, "spec")["later"] = part
    properties(document, "status")["later"] = {"type": "string"}
    return document


def test_a_definition_that_is_older_than_the_operator_serves_and_is_upgraded_under_it(
    pools: Pools, controller: Controller
) -> None:
    with replaced(pools, older(pools), "loading", known=False):
        created = pools.create(tiers={"memory": {"size": "1Gi"}})
        assert "loading" not in created["spec"] and "updateStrategy" not in created["spec"]["agent"]
        pools.wait_objects()
        pools.wait_condition("Ready", "False", "NoMembers")
        assert "configured" not in pools.pool()["status"]
        made = pools.config_map().metadata.uid
        document = pools.document()
    # what was stored before is served by the present one, its new fields with their defaults
    wait_for("the present definition", lambda: "loading" in pools.pool()["spec"], SECONDS)
    found = pools.pool()
    assert found["metadata"]["uid"] == created["metadata"]["uid"] and found["metadata"]["generation"] == 1
    assert found["spec"]["tiers"]["memory"]["size"] == "1Gi"
    assert found["spec"]["agent"]["updateStrategy"] == {"type": "OnDelete"}
    pools.wait_status(configured="0/0")
    assert (pools.config_map().metadata.uid, pools.document()) == (made, document)  # nothing moves for it
    pools.patch({"loading": {"deadlineSeconds": 5}})
    wait_for("the new field", lambda: pools.configuration()["loading"]["deadlineSeconds"] == 5, SECONDS)
    assert controller.running


def test_a_definition_that_is_newer_than_the_operator_changes_nothing_for_it(
    pools: Pools, controller: Controller
) -> None:
    before = pools.create(name="before")
    with replaced(pools, newer(pools), "later", known=True):
        assert pools.create()["spec"]["later"] == {"speed": 7}
        pools.patch({"later": {"speed": 9}})
        pools.wait_objects()
        pools.wait_condition("ConfigValid", "True", "Accepted")
        pools.wait_condition("ConfigValid", "True", "Accepted", name="before")
        assert "later" not in pools.configuration()
    # gone back, what the newer one had stored is no longer served, and the rest is
    wait_for("the present definition", lambda: "later" not in pools.pool()["spec"], SECONDS)
    pools.patch({"prewarm": {"maxStreams": 7}})
    wait_for("a change", lambda: pools.configuration()["prewarm"]["maxStreams"] == 7, SECONDS)
    assert pools.pool("before")["metadata"]["uid"] == before["metadata"]["uid"]
    assert controller.running and pools.condition("ConfigValid", NAME)["status"] == "True"
