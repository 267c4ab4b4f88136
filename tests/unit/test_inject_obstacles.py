"""What keeps a pod from joining, each by its reason, and what does not."""

import copy
from typing import Any

import pytest
from pod_templates import SETTINGS, engine, first, joined, pool, template

from kvpool_contract.reasons import REASONS
from kvpool_operator.inject import Injected, Skip, inject


def from_source(name: str) -> dict[str, Any]:
    return engine(env=[{"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}])


@pytest.mark.parametrize("port", [7700, 7701, 7702])
def test_an_engine_at_a_port_of_the_agents_could_not_listen(port: int) -> None:
    given = template(engine(args=["--port", str(port)]))
    assert inject(given, pool(engine={"port": port}), SETTINGS) == Skip("port_taken")
    assert inject(template(engine(args=["--port", "7703"])), pool(engine={"port": 7703}), SETTINGS) != Skip(
        "port_taken"
    )


def mounted_at(path: str, **more: Any) -> dict[str, Any]:
    return engine(volumeMounts=[{"name": "mine", "mountPath": path, **more}])


def with_shm(**volume: Any) -> dict[str, Any]:
    mounted = engine(volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}])
    return template(mounted, volumes=[{"name": "shm", **volume}] if volume else [])


VLLM_BY_ARGUMENT = {"name": "b", "image": "i", "args": ["-m", "vllm.entrypoints.openai.api_server"]}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (template(hostNetwork=True), "host_network"),
        (template(labels={"kvpool.io/pool": "other"}), "other_pool"),
        (template({"name": "a", "image": "i"}, {"name": "b", "image": "i"}), "no_engine_container"),
        (template(engine(), VLLM_BY_ARGUMENT), "no_engine_container"),
        (template(containers=[]), "no_engine_container"),
        (template(from_source("PYTHONPATH")), "pythonpath_from_source"),
        (with_shm(emptyDir={}), "shm_not_memory"),
        (with_shm(hostPath={"path": "/dev/shm"}), "shm_not_memory"),
        (with_shm(), "shm_not_memory"),
        (template(from_source("VLLM_PLUGINS")), "plugins_from_source"),
        (template(engine(args=["--port", "9000"])), "engine_port_differs"),
        (template(engine(env=[{"name": "KVPOOL_CLIENT_CONFIG", "value": "{}"}])), "already_injected"),
        (template(volumes=[{"name": "kvpool-run", "emptyDir": {}}]), "already_injected"),
        (template(mounted_at("/run/kvpool/")), "path_taken"),
        (template(mounted_at("/kvpool/client")), "path_taken"),
        (template(mounted_at("/run", readOnly=True)), "path_taken"),
        (template(engine(command=["sh", "-c", "#" * 140_000])), "annotations_full"),
    ],
)
def test_a_template_that_cannot_join_is_left_alone_with_a_reason(given: dict[str, Any], reason: str) -> None:
    before = copy.deepcopy(given)
    assert inject(given, pool(), SETTINGS) == Skip(reason)
    assert given == before
    assert reason in REASONS


@pytest.mark.parametrize(
    ("containers", "container", "found"),
    [
        ([{"name": "a", "image": "i"}], "", "a"),
        ([{"name": "a", "image": "i"}, {"name": "b", "image": "example.test/VLLM:1"}], "", "b"),
        ([{"name": "a", "image": "i"}, VLLM_BY_ARGUMENT], "", "b"),
        ([{"name": "a", "image": "i"}, {"name": "b", "image": "i", "command": ["/opt/vllm"]}], "", "b"),
        ([engine(), {"name": "b", "image": "i"}], "b", "b"),
    ],
)
def test_the_engines_container(containers: list[dict[str, Any]], container: str, found: str) -> None:
    result = inject(template(*containers), pool(engine={"container": container}), SETTINGS)
    assert isinstance(result, Injected)
    assert result.engine == found
    changed = [c["name"] for c in result.template["spec"]["containers"] if "volumeMounts" in c]
    assert changed == [found]


def test_a_named_container_that_is_not_there() -> None:
    assert inject(template(), pool(engine={"container": "x"}), SETTINGS) == Skip("no_engine_container")


@pytest.mark.parametrize("path", ["/run", "/run/kvpool2", "/kvpool", "/kvpool/client/x", "/"])
def test_other_places_for_volumes_are_no_obstacle(path: str) -> None:
    paths = [mount["mountPath"] for mount in first(joined(template(mounted_at(path))))["volumeMounts"]]
    assert paths == [path, "/dev/shm", "/run/kvpool", "/kvpool/client"]
    assert joined(template(mounted_at("/run/kvpool2", readOnly=True)))
    assert joined(template(engine(command=["sh", "-c", "#" * 120_000])))
