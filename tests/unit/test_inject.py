"""The injector: what it adds to a template, what it leaves alone, and why it refuses. The whole result of an
ordinary template is compared in test_cli.py with golden/joined.yaml."""

import copy
import json
from typing import Any

import pytest
from pod_templates import GUARANTEED, engine, first, joined, own, pool, template, variables

from kvpool_operator.desired.pool import PoolError
from kvpool_operator.inject import Injected, Settings, inject, restore
from kvpool_operator.inject.engine import port_of
from kvpool_operator.inject.eviction import EVICTABLE
from kvpool_operator.inject.grace import GRACE


def test_the_input_is_never_changed() -> None:
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
    given = template(
        engine(
            env=[{"name": "PYTHONPATH", "value": "/x"}, {"name": "VLLM_PLUGINS", "value": "a"}],
            resources={"limits": {"memory": "1Gi"}},
            volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}],
        ),
        volumes=[shm],
        initContainers=[{"name": "first", "image": "i"}],
    )
    before = copy.deepcopy(given)
    after = joined(given)
    assert given == before
    assert after != before


def test_image_and_arguments_of_the_engine_stay() -> None:
    kept = {"image": "example.test/vllm:1", "args": ["serve", "m"], "readinessProbe": {"x": 1}}
    after = first(joined(template(engine(**kept))))
    assert {name: after[name] for name in kept} == kept
    assert "command" not in after


def test_the_sidecar_is_the_last_init_container_behind_the_client() -> None:
    after = joined(template(initContainers=[{"name": "weights", "image": "i"}]))
    assert [(c["name"], c.get("restartPolicy")) for c in after["spec"]["initContainers"]] == [
        ("weights", None),
        ("kvpool-client", None),
        ("kvpool-agent", "Always"),
    ]
    assert {c["image"] for c in after["spec"]["initContainers"][1:]} == {"example.test/agent:1"}


def test_the_image_of_the_call_goes_before_that_of_the_pool_and_one_is_needed() -> None:
    named = pool(agent={"image": "example.test/pool:2"})
    result = inject(template(), named, Settings())
    assert isinstance(result, Injected)
    assert own(result.template, "kvpool-agent")["image"] == "example.test/pool:2"
    assert own(joined(template(), named), "kvpool-agent")["image"] == "example.test/agent:1"
    with pytest.raises(PoolError) as refusal:
        inject(template(), pool(), Settings())
    assert str(refusal.value) == (
        "pool field spec.agent.image: it is empty; name the agent's image there or with --image"
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ([], {"PYTHONPATH": "/kvpool/client"}),
        ([{"name": "PYTHONPATH", "value": "/a:/b"}], {"PYTHONPATH": "/kvpool/client:/a:/b"}),
        ([{"name": "PYTHONPATH"}], {"PYTHONPATH": "/kvpool/client"}),
        (
            [{"name": "VLLM_PLUGINS", "value": "a,b"}],
            {"VLLM_PLUGINS": "a,b,kvpool", "PYTHONPATH": "/kvpool/client"},
        ),
        (
            [{"name": "VLLM_PLUGINS", "value": "kvpool,a"}],
            {"VLLM_PLUGINS": "kvpool,a", "PYTHONPATH": "/kvpool/client"},
        ),
        ([{"name": "VLLM_PLUGINS", "value": ""}], {"VLLM_PLUGINS": "kvpool", "PYTHONPATH": "/kvpool/client"}),
    ],
)
def test_the_environment_lets_the_engine_find_the_plugin(
    environment: list[dict[str, str]], expected: dict[str, str]
) -> None:
    after = variables(first(joined(template(engine(env=environment)))))
    configuration = after.pop("KVPOOL_CLIENT_CONFIG")
    assert after == expected
    assert json.loads(configuration) == {
        "version": 1,
        "socket": "/run/kvpool/engine.sock",
        "hostPoolBytes": 4294967296,
        "blockTokens": 256,
        "allowUntested": False,
        "cacheNamespaces": False,
        "decodeOutput": False,
    }


def test_the_plugin_is_told_what_of_its_engine_is_kept() -> None:
    after = variables(first(joined(template(engine()), pool(publication={"decodeOutput": True}))))
    assert json.loads(after["KVPOOL_CLIENT_CONFIG"])["decodeOutput"] is True


@pytest.mark.parametrize(
    ("arguments", "port"),
    [
        ([], None),
        (["--port", "9000"], 9000),
        (["--port=9001"], 9001),
        (["--port", "1", "--port", "9002"], 9002),
        (["serve", "--port"], None),
        (["--portal", "9000"], None),
        (["-c", "exec vllm serve m \\\n --port 9003 'unbalanced"], 9003),
        (["-c", "vllm serve m --port=9004 --name 'a b'"], 9004),
        (["--port", "$PORT"], None),
        (["x '--port 9' " + "y" * 17_000, "'--port' 3"], None),  # too long to look at quotes, there and from there on
        (["x '--port' 9 " + "y" * 16_000], 9),
        (["x " + "y" * 17_000 + " --port 9"], 9),
    ],
)
def test_the_engines_port_is_read_where_it_stands_plainly(arguments: list[str], port: int | None) -> None:
    assert port_of(engine(args=arguments)) == port


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (
            {"limits": {"memory": "1Gi", "cpu": "2"}},
            {"limits": {"memory": "5Gi", "cpu": "2"}, "requests": {"memory": "5Gi"}},
        ),
        ({"requests": {"memory": "512Mi"}}, {"requests": {"memory": "4608Mi"}}),
        (
            {"requests": {"memory": "1G"}, "limits": {"memory": 5}},
            {"requests": {"memory": "5294967296"}, "limits": {"memory": "4294967301"}},
        ),
        ({"limits": {"cpu": 1}}, {"limits": {"cpu": 1}}),
        (
            {"limits": {"memory": "0"}, "requests": {"memory": 0}},
            {"limits": {"memory": "0"}, "requests": {"memory": 0}},
        ),
    ],
)
def test_memory_that_is_set_grows_by_the_host_pool(resources: dict[str, Any], expected: dict[str, Any]) -> None:
    assert first(joined(template(engine(resources=resources))))["resources"] == expected


@pytest.mark.parametrize(
    "resources",
    [{"limits": {"memory": "9Gi"}}, {"requests": {"memory": "1G"}, "limits": {"memory": "9Gi"}}, GUARANTEED],
)
def test_memory_is_left_alone_where_the_pool_says_so(resources: dict[str, Any]) -> None:
    given = template(engine(resources=resources))
    after = joined(given, pool(engine={"hostPool": {"adjustResources": False}}))
    assert first(after)["resources"] == resources
    assert {"name": "kvpool-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "4160Mi"}} in after["spec"]["volumes"]
    assert first(joined(given))["resources"] != resources


def test_a_pods_own_limit_of_zero_is_none_and_stays() -> None:
    resources = {"limits": {"memory": "0", "cpu": "4"}, "requests": {"memory": "0", "cpu": "1"}}
    expected = {"limits": {"memory": "0", "cpu": "6"}, "requests": {"memory": "0", "cpu": "1250m"}}
    assert joined(template(resources=resources))["spec"]["resources"] == expected


def test_an_engine_without_resources_gets_none() -> None:
    assert "resources" not in first(joined(template()))


@pytest.mark.parametrize(
    ("own", "seconds", "after"),
    [({}, 20, 50), ({}, 2.5, 33), ({}, 0, None), ({GRACE: 600}, 20, 620), ({GRACE: 0}, 20, 0), ({GRACE: None}, 20, 50)],
)
def test_the_pod_has_time_to_hand_over_beyond_the_engines_own(
    own: dict[str, Any], seconds: float, after: int | None
) -> None:
    given = template(**own)
    result = joined(given, pool(drain={"maxSeconds": seconds}))
    assert result["spec"].get(GRACE) == after
    assert restore(result)["spec"].get(GRACE) == own.get(GRACE)


def test_shared_memory_has_room_for_the_host_pool() -> None:
    after = joined(template())
    assert {"name": "kvpool-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "4160Mi"}} in after["spec"]["volumes"]
    assert {"name": "kvpool-shm", "mountPath": "/dev/shm"} in first(after)["volumeMounts"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"sizeLimit": "1Gi"}, {"sizeLimit": "5Gi"}),  # what the engine had stays on top of the host pool
        ({"sizeLimit": "1Mi"}, {"sizeLimit": "4160Mi"}),
        ({"sizeLimit": "4159Mi"}, {"sizeLimit": "8255Mi"}),
        ({"sizeLimit": "4160Mi"}, {"sizeLimit": "4160Mi"}),
        ({}, {}),
    ],
)
def test_a_memory_volume_of_the_users_own_is_enlarged(before: dict[str, str], after: dict[str, str]) -> None:
    given = template(
        engine(volumeMounts=[{"name": "shm", "mountPath": "/dev/shm/"}]),
        volumes=[{"name": "shm", "emptyDir": {"medium": "Memory", **before}}],
    )
    result = joined(given)
    assert result["spec"]["volumes"][0] == {"name": "shm", "emptyDir": {"medium": "Memory", **after}}
    assert [v["name"] for v in result["spec"]["volumes"]] == [
        "shm",
        "kvpool-config",
        "kvpool-identity",
        "kvpool-run",
        "kvpool-client",
        "kvpool-no-token",
    ]


@pytest.mark.parametrize(
    ("resources", "requested"),
    [
        (GUARANTEED, {"kvpool-agent": "1", "kvpool-client": "500m"}),
        ({"limits": GUARANTEED["limits"]}, {"kvpool-agent": "1", "kvpool-client": "500m"}),
        ({"requests": GUARANTEED["requests"]}, {"kvpool-agent": "250m", "kvpool-client": "50m"}),
        (
            {**GUARANTEED, "requests": {"cpu": "1999m", "memory": "8Gi"}},
            {"kvpool-agent": "250m", "kvpool-client": "50m"},
        ),
    ],
)
def test_a_guaranteed_pod_stays_guaranteed(resources: dict[str, Any], requested: dict[str, str]) -> None:
    after = joined(template(engine(resources=resources)))
    got = {c["name"]: c["resources"] for c in after["spec"]["initContainers"]}
    assert {name: r["requests"]["cpu"] for name, r in got.items()} == requested
    for r in got.values():
        assert r["requests"]["memory"] == r["limits"]["memory"]


def test_the_agents_memory_is_arena_and_overhead_and_the_pool_has_the_last_word() -> None:
    assert own(joined(template(), pool(tiers={"memory": {"size": "1Gi"}})), "kvpool-agent")["resources"] == {
        "requests": {"cpu": "250m", "memory": "1540Mi", "ephemeral-storage": "256Mi"},
        "limits": {"cpu": "2", "memory": "1540Mi"},
    }
    said = {"requests": {"cpu": "10m"}, "limits": {"memory": "20Gi", "cpu": 4}}
    assert own(joined(template(), pool(agent={"resources": said})), "kvpool-agent")["resources"] == {
        "requests": {"cpu": "10m", "memory": "8736Mi", "ephemeral-storage": "256Mi"},
        "limits": {"cpu": 4, "memory": "20Gi"},
    }


STORAGE = "ephemeral-storage"
TEN = {"resources": {"limits": {STORAGE: "10Gi"}}}


@pytest.mark.parametrize(
    ("engine_has", "others", "limits"),
    [
        ({}, {}, [None, None]),
        (TEN, {}, ["64Mi", "256Mi"]),
        ({}, {"initContainers": [{"name": "weights", "image": "i", **TEN}]}, ["64Mi", "256Mi"]),
    ],
    ids=["nobody", "engine", "another"],
)
def test_where_no_container_of_the_pod_has_a_limit_of_ephemeral_storage_ours_have_none(
    engine_has: dict[str, Any], others: dict[str, Any], limits: list[str | None]
) -> None:
    """The kubelet holds a pod to the sum of those that there are."""
    given = template(engine(**engine_has), **others)
    after = joined(given)
    ours = [own(after, name)["resources"] for name in ("kvpool-client", "kvpool-agent")]
    assert [r["limits"].get(STORAGE) for r in ours] == limits
    assert [r["requests"][STORAGE] for r in ours] == ["64Mi", "256Mi"]
    disk = pool(tiers={"disk": {"size": "20Gi"}})
    agent = own(joined(given, disk), "kvpool-agent")["resources"]
    assert agent["requests"][STORAGE] == "20736Mi"
    assert agent["limits"].get(STORAGE) == ("20736Mi" if limits[1] else None)
    said = pool(agent={"resources": {"limits": {STORAGE: "1Gi"}}})
    assert own(joined(given, said), "kvpool-agent")["resources"]["limits"][STORAGE] == "1Gi"


@pytest.mark.parametrize(
    ("pod", "users"),
    [
        ({}, [None] * 4),
        ({"runAsUser": 1000650000, "runAsGroup": 0, "fsGroup": 1000650000}, [None] * 4),
        ({"runAsUser": 0}, [10001] * 4),
    ],
)
def test_a_user_is_named_only_where_the_pod_would_make_our_containers_root(
    pod: dict[str, Any], users: list[int | None]
) -> None:
    """OpenShift gives every container a user of the namespace's range, and refuses one that names another."""
    after = joined(template(engine(securityContext={"runAsUser": 0}), securityContext=pod))
    contexts = [own(after, name)["securityContext"] for name in ("kvpool-client", "kvpool-agent")]
    assert [context.get(name) for context in contexts for name in ("runAsUser", "runAsGroup")] == users
    assert [context["runAsNonRoot"] for context in contexts] == [True, True]
    assert after["spec"]["securityContext"] == pod
    assert first(after)["securityContext"] == {"runAsUser": 0}


def test_labels_and_annotations_and_a_hash_that_follows_what_needs_new_pods() -> None:
    given = template(labels={"app": "x", "kvpool.io/pool": "chat"})
    given["metadata"]["annotations"] = {"kept": "yes"}
    metadata = joined(given)["metadata"]
    assert metadata["labels"] == {"app": "x", "kvpool.io/pool": "chat"}
    assert metadata["annotations"].pop("kept") == "yes"
    digest = metadata["annotations"]["kvpool.io/config-hash"]
    live = {"paused": True, "loading": {"deadlineSeconds": 3}, "prewarm": {"maxStreams": 9}}
    live["readiness"] = {"targetPercent": 5}
    arena, port = {"tiers": {"memory": {"size": "3Gi"}}}, {"engine": {"port": 9}}
    for spec, same in (({}, True), (live, True), (arena, False), (port, False)):
        annotations = joined(template(), pool(**spec))["metadata"]["annotations"]
        assert (annotations["kvpool.io/config-hash"] == digest) is same, spec
    # a change that agents take over leaves the whole template as it is: applied again, no pod is made anew
    assert joined(template(), pool(**live)) == joined(template())


def keeps_its_node(given: dict[str, Any]) -> list[str]:
    """Volumes for which the cluster autoscaler keeps the pod's node."""
    listed = (given["metadata"].get("annotations") or {}).get(EVICTABLE, "").split(",")
    volumes = given["spec"].get("volumes") or []
    return [v["name"] for v in volumes if {"emptyDir", "hostPath"} & v.keys() and v["name"] not in listed]


@pytest.mark.parametrize("listed", ["", "scratch"])
def test_no_volume_of_ours_keeps_a_node_from_the_cluster_autoscaler_and_those_of_the_user_stay_as_they_were(
    listed: str,
) -> None:
    disk = pool(tiers={"disk": {"size": "1Gi"}})
    assert keeps_its_node(joined(template(), disk)) == []
    given = template(
        volumes=[{"name": "scratch", "emptyDir": {}}, {"name": "models", "hostPath": {"path": "/models"}}],
    )
    given["metadata"]["annotations"] = {EVICTABLE: listed} if listed else {}
    after = joined(given, disk)
    assert keeps_its_node(after) == keeps_its_node(given) == [n for n in ("scratch", "models") if n != listed]
    assert restore(after) == given
    assert joined(after, disk) == after
