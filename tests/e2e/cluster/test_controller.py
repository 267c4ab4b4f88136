"""The controller on a real API server: what it makes and repairs, what survives its death, and what it leaves alone.
It runs as a process under the rights that it documents, and no more."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

from cluster.controllers import POLL_SECONDS, Controller
from cluster.kube import wait_for
from cluster.pools import NAME, OBJECTS, SECONDS, Pools
from kvpool_contract.config import decode_config
from kvpool_operator.controller.cluster import FIELD_MANAGER


def test_a_pool_gets_its_configuration_its_service_and_a_status(pools: Pools, controller: Controller) -> None:
    made = pools.create(tiers={"memory": {"size": "3Gi"}})
    configuration, headless = pools.wait_objects()
    config = decode_config(configuration.data["agent.json"].encode()).config
    assert (config.arenaBytes, config.pool) == (3 * 2**30, NAME)
    assert config.members.dns == f"{OBJECTS}.{pools.namespace}.svc:7700"
    assert (headless.spec.cluster_ip, headless.spec.publish_not_ready_addresses) == ("None", True)
    assert headless.spec.selector == {"kvpool.io/pool": NAME}
    for each in (configuration, headless):
        (owner,) = each.metadata.owner_references
        assert (owner.kind, owner.uid, owner.controller) == ("KVCachePool", made["metadata"]["uid"], True)
        assert {f.manager for f in each.metadata.managed_fields} == {FIELD_MANAGER}
    pools.wait_condition("Ready", "False", "NoMembers")
    found = pools.pool()
    assert (found["status"]["phase"], found["status"]["ready"], found["status"]["warm"]) == ("Pending", "0/0", "0/0")
    assert {c["observedGeneration"] for c in found["status"]["conditions"]} == {1}
    # nobody's progress is kept on the pool, and nothing can hold it back
    assert "finalizers" not in found["metadata"] and "annotations" not in found["metadata"]
    assert pools.kubectl("get", "kvp", NAME, "--no-headers").stdout.split()[:4] == [NAME, "Pending", "0/0", "0/0"]
    assert wait_for("liveness", controller.healthy, SECONDS)


def test_a_changed_pool_changes_the_configuration(pools: Pools) -> None:
    pools.create()
    pools.wait_objects()
    pools.patch({"prewarm": {"maxStreams": 7}})
    wait_for("it", lambda: pools.configuration()["prewarm"]["maxStreams"] == 7, SECONDS)
    pools.wait_status(observedGeneration=2)


def test_objects_deleted_or_edited_by_hand_are_restored_and_what_others_added_stays(pools: Pools) -> None:
    pools.create()
    configuration, headless = pools.wait_objects()
    wanted = configuration.data["agent.json"]
    pools.kubectl("delete", "configmap,service", OBJECTS)
    again = pools.wait_objects()
    assert all(new.metadata.uid != old.metadata.uid for new, old in zip(again, (configuration, headless), strict=True))
    edits = {
        "configmap": {"data": {"agent.json": "{}", "mine": "kept"}, "metadata": {"ownerReferences": None}},
        "service": {"spec": {"publishNotReadyAddresses": False, "selector": {"a": "b"}}},
    }
    for kind, edit in edits.items():
        pools.kubectl("patch", kind, OBJECTS, "--type=merge", "-p", json.dumps(edit))
    restored = {"agent.json": wanted, "mine": "kept"}
    wait_for("the configuration", lambda: pools.config_map().data == restored, SECONDS)
    assert len(pools.config_map().metadata.owner_references) == 1
    wait_for("the service", lambda: pools.service().spec.publish_not_ready_addresses, SECONDS)
    assert pools.service().spec.selector == {"kvpool.io/pool": NAME}


def test_killed_while_it_makes_a_pool_it_converges(pools: Pools, controller: Controller) -> None:
    """Killed before it has seen a pool, between its two objects as near as can be, and before the status is there."""
    moments = (
        lambda name: True,
        lambda name: pools.config_map(f"{name}-kvpool"),
        lambda name: pools.service(f"{name}-kvpool"),
    )
    for number, moment in enumerate(moments):
        name = f"shop{number}"
        wait_for("the controller", lambda: controller.passes() + 1, SECONDS)
        pools.create(name)
        wait_for(f"the moment {number}", lambda n=name, m=moment: m(n), SECONDS, every=0.005)
        controller.kill()
        controller.start()
    for number in range(len(moments)):
        pools.wait_condition("ConfigValid", "True", "Accepted", f"shop{number}")
    wanted = {(kind, f"shop{n}-kvpool") for kind in ("ConfigMap", "Service") for n in range(len(moments))}
    assert pools.own_objects() == wanted


def test_killed_while_a_pool_is_deleted_and_while_nobody_runs_nothing_is_left(
    pools: Pools, controller: Controller
) -> None:
    for name in ("shop0", "shop1"):
        pools.create(name)
    wait_for("four objects", lambda: len(pools.own_objects()) == 4, SECONDS)
    pools.kubectl("delete", "kvp", "shop0", "--wait=false")
    controller.kill()
    pools.delete("shop1")  # nobody is there to let it go
    wait_for("nothing left", lambda: not pools.own_objects(), SECONDS)
    controller.start()
    wait_for("a controller", lambda: controller.passes() + 1, SECONDS)
    pools.create("shop2")  # and it makes none of them again
    wait_for("two objects", lambda: len(pools.own_objects()) == 2, SECONDS)
    assert pools.own_objects() == {("ConfigMap", "shop2-kvpool"), ("Service", "shop2-kvpool")}


def test_a_deleted_pool_comes_back_under_its_name(pools: Pools) -> None:
    first = pools.create()
    pools.wait_objects()
    pools.delete()
    second = pools.create()
    assert first["metadata"]["uid"] != second["metadata"]["uid"]

    def owners() -> set[str]:
        return {o.uid for each in pools.wait_objects() for o in each.metadata.owner_references}

    wait_for("the second pool's objects", lambda: owners() == {second["metadata"]["uid"]}, SECONDS)


def test_an_object_of_somebody_else_is_left_alone_and_told(pools: Pools) -> None:
    pools.kubectl("create", "configmap", OBJECTS, "--from-literal=agent.json=theirs")
    pools.create()
    told = pools.wait_condition("Ready", "False", "NameTaken")
    assert told["message"].startswith(f"ConfigMap {OBJECTS} is not this pool's and is left alone; delete or rename it")
    assert pools.config_map().data == {"agent.json": "theirs"} and pools.pool()["status"]["phase"] == "Degraded"
    pools.wait_event("NameTaken")
    pools.kubectl("delete", "configmap", OBJECTS)
    pools.wait_condition("Ready", "False", "NoMembers")
    assert pools.configuration()["pool"] == NAME


def test_objects_that_the_command_line_printed_become_the_pools(pools: Pools) -> None:
    metadata = {"name": OBJECTS, "labels": {"kvpool.io/pool": NAME}}
    printed = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"agent.json": "{}"}}
    pools.kubectl("apply", "-f", "-", stdin=json.dumps(printed))
    pools.create()
    wait_for("an owner", lambda: pools.config_map().metadata.owner_references, SECONDS)
    assert pools.configuration()["pool"] == NAME


def test_a_spec_that_the_definition_let_through_is_told_and_the_last_good_configuration_stays(pools: Pools) -> None:
    """A definition of another version may lie in the cluster: here one without the rules of one field."""
    pools.create(tiers={"memory": {"size": "1Gi"}})
    pools.wait_objects()
    pools.wait_condition("ConfigValid", "True", "Accepted")
    good = pools.config_map().data["agent.json"]
    with without_rules(pools):
        pools.patch({"tiers": {"memory": {"size": "8GB"}}})
        told = pools.wait_condition("ConfigValid", "False", "Invalid")
        assert told["message"] == (
            "pool field spec.tiers.memory.size: '8GB' is no quantity; write a number with a unit, such as 500Mi or 4Gi"
        )
        assert (told["observedGeneration"], pools.pool()["status"]["phase"]) == (2, "Degraded")
        assert pools.config_map().data["agent.json"] == good
        pools.wait_event("ConfigInvalid")
        pools.patch({"tiers": {"memory": {"size": "8G"}}})
        pools.wait_condition("ConfigValid", "True", "Accepted")
    wait_for("the new size", lambda: pools.configuration()["arenaBytes"] == 8 * 10**9, SECONDS)


@contextlib.contextmanager
def without_rules(pools: Pools) -> Iterator[None]:
    """The definition with the size of the arena as free text, for a while."""
    found = json.loads(pools.kubectl("get", "crd", "kvcachepools.kvpool.io", "-o", "json").stdout)
    schema = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del schema["properties"]["tiers"]["properties"]["memory"]["properties"]["size"]["x-kubernetes-validations"]
    pools.kubectl("replace", "-f", "-", stdin=json.dumps(found))
    free = {"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": {"name": "free"}}
    free |= {"spec": {"tiers": {"memory": {"size": "free"}}}}
    try:
        wait_for("free text", lambda: pools.create_pool(free, dry_run="All"), SECONDS)
        yield
    finally:
        pools.install_crd()


def test_nothing_is_written_while_nothing_changes(pools: Pools, controller: Controller) -> None:
    pools.create()
    pools.wait_objects()
    pools.wait_condition("Ready", "False", "NoMembers")

    def versions() -> list[str]:
        found = [each.metadata.resource_version for each in pools.wait_objects()]
        return [*found, pools.pool()["metadata"]["resourceVersion"]]

    controller.wait_quiet(4, versions)
    before, written = versions(), controller.writes()
    # and both witnesses can see a write
    pools.patch({"prewarm": {"maxStreams": 7}})
    pools.wait_status(observedGeneration=2)
    wait_for("both writes are counted", lambda: controller.writes() == written + 2, 10)
    assert versions()[0] != before[0]


def test_an_api_server_that_is_away_for_half_a_minute_costs_no_more(pools: Pools, controller: Controller) -> None:
    pools.create()
    pools.wait_objects()
    controller.door.shut()
    pools.kubectl("delete", "configmap", OBJECTS)
    pools.create("meanwhile")
    time.sleep(30 - POLL_SECONDS)  # it is away for so long: nothing is waited for
    assert wait_for("liveness", controller.healthy, 30) and controller.running
    assert pools.config_map() is None and "status" not in pools.pool("meanwhile")
    controller.door.open()
    pools.wait_condition("ConfigValid", "True", "Accepted", "meanwhile")
    pools.wait_objects()
    assert controller.running


def test_told_to_look_in_one_namespace_it_needs_no_right_beyond(
    pools: Pools, controller: Controller, tmp_path: Path
) -> None:
    controller.end()
    alone = Pools(pools.provided, "kvpool-controller-alone")
    alone.prepare()
    narrow = Controller(alone, tmp_path, everywhere=False).start()
    try:
        wait_for("it has looked around", lambda: narrow.metric("kvpool_controller_pools") + 1, SECONDS)
        pools.create()  # elsewhere
        alone.create()
        alone.wait_objects()
        alone.wait_condition("Ready", "False", "NoMembers")
        alone.kubectl("delete", "service", OBJECTS)
        alone.wait_objects()
        assert pools.own_objects() == set() and narrow.metric("kvpool_controller_pools") == 1
    finally:
        narrow.end()
        alone.remove()


def test_it_ends_in_good_order_when_it_is_told_to(pools: Pools, controller: Controller) -> None:
    pools.create()
    pools.wait_objects()
    assert controller.end() == 0
