"""Pods of every shape through the injector, against golden files, compared as structures.

A golden file holds a pool's spec, a pod, and the pod that comes out or the reason why it is left alone. kvpool's own
containers stand there by name and resources, and by their security context where it adds something; the rest of them is
the same in every pod, and whole in joined.yaml. `privileged`: the pod's namespace is; `withheld`: why the agent is not
given what the pool asks for.
`KVPOOL_WRITE_GOLDEN=1` writes the results anew, for the eye to check.
"""

import copy
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpool_contract.names import IPC_LOCK_VARIABLE, ORIGINALS_ANNOTATION
from kvpool_contract.reasons import REASONS
from kvpool_operator.desired.objects import DISK_DIR
from kvpool_operator.desired.pool import KVCachePool, read_pool
from kvpool_operator.inject import Injected, Settings, Skip, inject, is_injected, restore
from kvpool_operator.inject.containers import SECURITY_CONTEXT

FOLDER = Path(__file__).parent / "golden" / "pods"
SHAPES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
SETTINGS = Settings(image="example.test/kvpool-agent:1")


def pool(spec: dict[str, Any]) -> KVCachePool:
    metadata = {"name": "chat", "namespace": "team-a"}
    return read_pool(
        {"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": metadata, "spec": spec},
    )


def read(shape: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((FOLDER / f"{shape}.yaml").read_text())
    return content


def joined(template: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    result = inject(template, pool(spec), SETTINGS)
    assert isinstance(result, Injected), result
    return result.template


def own_bodies(template: dict[str, Any]) -> list[dict[str, Any]]:
    """What does not follow from the pod: all but resources, plain values of variables and the disk tier's mount."""
    own = [copy.deepcopy(c) for c in template["spec"]["initContainers"] if c["name"].startswith("kvpool-")]
    for container in own:
        container.pop("resources")
        if added_rights(container):
            container["securityContext"] = SECURITY_CONTEXT
        container["volumeMounts"] = [m for m in container["volumeMounts"] if m["mountPath"] != DISK_DIR]
        for variable in container.get("env", []):
            variable.pop("value", None)
        if "env" in container:
            container["env"] = [v for v in container["env"] if v["name"] != IPC_LOCK_VARIABLE]
    return own


def added_rights(container: dict[str, Any]) -> dict[str, Any]:
    context = container["securityContext"]
    return {"securityContext": context} if "add" in context["capabilities"] else {}


def disk_mount(container: dict[str, Any]) -> dict[str, Any]:
    found = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == DISK_DIR]
    return {"disk": found} if found else {}


def shortened(template: dict[str, Any]) -> dict[str, Any]:
    """As it stands in a golden file."""
    short = copy.deepcopy(template)
    short["spec"]["initContainers"] = [
        {"name": c["name"], "resources": c["resources"], **disk_mount(c), **added_rights(c)}
        if c["name"].startswith("kvpool-")
        else c
        for c in short["spec"]["initContainers"]
    ]
    annotations = short["metadata"]["annotations"]
    annotations[ORIGINALS_ANNOTATION] = json.loads(annotations[ORIGINALS_ANNOTATION])
    return short


@pytest.mark.parametrize("shape", SHAPES)
def test_what_comes_out(shape: str) -> None:
    content = read(shape)
    before = copy.deepcopy(content["given"])
    result = inject(content["given"], pool(content["pool"]), replace(SETTINGS, privileged="privileged" in content))
    assert content["given"] == before
    found: dict[str, Any]
    if isinstance(result, Skip):
        found = {"skipped": result.reason}
    else:
        found = {"expected": shortened(result.template)}
        found |= {"withheld": result.withheld} if result.withheld else {}
    if os.environ.get("KVPOOL_WRITE_GOLDEN"):
        path = FOLDER / f"{shape}.yaml"
        title = path.read_text().splitlines()[0]
        kept = {name: content[name] for name in ("pool", "privileged", "given") if name in content}
        body = yaml.safe_dump({**kept, **found}, sort_keys=False, width=118)
        path.write_text(f"{title}\n{body}")
        content = read(shape)
    assert {name: content[name] for name in ("expected", "withheld", "skipped") if name in content} == found
    if isinstance(result, Injected):
        plain = joined({"spec": {"containers": [{"name": "engine", "image": "i"}]}}, {})
        assert own_bodies(result.template) == own_bodies(plain)
    else:
        assert result.reason in REASONS


def test_there_are_shapes_of_every_kind() -> None:
    skipped = [shape for shape in SHAPES if "skipped" in read(shape)]
    assert (len(SHAPES) - len(skipped), len(skipped)) == (36, 16)


@pytest.mark.parametrize("shape", SHAPES)
def test_called_again_it_changes_nothing_and_undone_nothing_is_left(shape: str) -> None:
    content = read(shape)
    first = inject(content["given"], pool(content["pool"]), SETTINGS)
    if isinstance(first, Skip):
        assert restore(content["given"]) == content["given"]
        return
    assert is_injected(first.template) and not is_injected(content["given"])
    assert inject(first.template, pool(content["pool"]), SETTINGS) == first
    assert restore(first.template) == content["given"]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_patch_makes_the_one_of_the_other(shape: str) -> None:
    content = read(shape)
    result = inject(content["given"], pool(content["pool"]), SETTINGS)
    if isinstance(result, Injected):
        patch = jsonpatch.make_patch(content["given"], result.template)
        assert patch.apply(content["given"]) == result.template != content["given"]


def test_another_pool_takes_the_place_of_the_first() -> None:
    content = read("environment-in-the-pod")
    small, large = {"engine": {"hostPool": {"size": "1Gi"}}}, {"engine": {"hostPool": {"size": "9Gi"}}}
    assert joined(joined(content["given"], small), large) == joined(content["given"], large)
    assert joined(content["given"], small) != joined(content["given"], large)


@pytest.mark.parametrize(("own", "after"), [(None, ["a", "b"]), (["b"], ["b", "a"]), (["x"], ["x", "a", "b"])])
def test_secrets_of_the_agents_image_stand_beside_the_pods_own_and_go_again(own: Any, after: list[str]) -> None:
    wanted = {"agent": {"imagePullSecrets": [{"name": "a"}, {"name": "b"}, {"name": "a"}]}}
    given: dict[str, Any] = {"spec": {"containers": [{"name": "engine", "image": "i"}]}}
    if own is not None:
        given["spec"]["imagePullSecrets"] = [{"name": name} for name in own]
    result = joined(given, wanted)
    assert [secret["name"] for secret in result["spec"]["imagePullSecrets"]] == after
    assert joined(result, wanted) == result and restore(result) == given
    assert joined(given, {})["spec"].get("imagePullSecrets") == given["spec"].get("imagePullSecrets")


def test_what_others_have_changed_since_is_theirs() -> None:
    """A mesh adds a proxy and a variable, an autoscaler sets the memory, between our two calls."""
    content = read("burstable")
    between = joined(content["given"], {})
    proxy = {"name": "istio-proxy", "image": "istio:1"}
    between["spec"]["containers"].append(proxy)
    engine = between["spec"]["containers"][0]
    engine["env"].append({"name": "THEIRS", "value": "1"})
    assert engine["resources"]["requests"]["memory"] == "6Gi"
    engine["resources"]["requests"]["memory"] = "10Gi"
    engine["resources"]["limits"]["memory"] = 7294967296  # what we wrote, spelt otherwise
    between["spec"]["initContainers"].append({"name": "late", "image": "late:1"})

    without = restore(between)
    assert [c["name"] for c in without["spec"]["containers"]] == ["engine", "istio-proxy"]
    assert without["spec"]["initContainers"] == [{"name": "late", "image": "late:1"}]
    assert without["spec"]["containers"][0]["env"] == [{"name": "THEIRS", "value": "1"}]
    assert without["spec"]["containers"][0]["resources"]["requests"]["memory"] == "10Gi"
    assert without["spec"]["containers"][0]["resources"]["limits"]["memory"] == "3000M"

    again = joined(between, {})
    assert [c["name"] for c in again["spec"]["initContainers"]] == ["late", "kvpool-client", "kvpool-agent"]
    assert again["spec"]["containers"][0]["resources"]["requests"]["memory"] == "14Gi"
    assert again == joined(again, {})


def test_an_engine_that_was_found_alone_is_found_again_beside_others() -> None:
    template = joined({"spec": {"containers": [{"name": "x", "image": "i"}]}}, {})
    template["spec"]["containers"].insert(0, {"name": "helper", "image": "h"})
    result = inject(template, pool({}), SETTINGS)
    assert isinstance(result, Injected) and result.engine == "x"


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"version":2}', '{"version":1,"engine":"x","added":[1]}'])
def test_parts_with_an_unreadable_record_are_left_alone(record: str) -> None:
    template = joined(read("job")["given"], {})
    template["metadata"]["annotations"][ORIGINALS_ANNOTATION] = record
    assert inject(template, pool({}), SETTINGS) == Skip("already_injected")


@pytest.mark.parametrize(
    "record",
    [
        {"changed": [["spec/containers/engine/securityContext/runAsUser", 0, 1000]]},
        {"changed": [["spec/containers/engine/image", "mine:1", "mirror.test/mine:1"]]},
        {"changed": [["metadata/labels/team", "x", "y"]]},
        {"added": ["spec/initContainers/audit"]},
        {"added": ["spec/containers/audit"]},
        {"made": ["spec/tolerations"]},
    ],
)
def test_a_record_undoes_nothing_that_no_injector_has_done(record: dict[str, Any]) -> None:
    """Anybody can write one; what a policy has made of the pod before kvpool was asked stays."""
    whole = {"version": 1, "engine": "engine", "added": [], "changed": [], "made": [], **record}
    engine = {"name": "engine", "image": "mirror.test/mine:1", "securityContext": {"runAsUser": 1000}}
    spec = {
        "containers": [engine, {"name": "audit", "image": "a"}],
        "initContainers": [{"name": "audit", "image": "a"}],
        "tolerations": [],
    }
    template = {"metadata": {"labels": {"team": "y"}}, "spec": spec}
    pod = copy.deepcopy(template)
    pod["metadata"]["annotations"] = {ORIGINALS_ANNOTATION: json.dumps(whole)}
    assert restore(pod) == template | {"metadata": {"labels": {"team": "y"}, "annotations": {}}}
    expected = inject({**template, "metadata": {"labels": {"team": "y"}, "annotations": {}}}, pool({}), SETTINGS)
    assert inject(pod, pool({}), SETTINGS) == expected


def test_nodes_without_native_sidecars() -> None:
    template = read("job")["given"]
    for version, taken in (((1, 28), False), ((1, 29), True), ((2, 0), True), (None, True)):
        result = inject(template, pool({}), Settings(image="i", kubernetes=version))
        assert isinstance(result, Injected) is taken
        assert taken or result == Skip("sidecars_unsupported")


# ---- random pods

words = st.sampled_from(["vllm", "serve", "--port", "8000", "sh", "-c", "vllm serve m", "python3", "/x.py", "a=b"])
quantities = st.sampled_from(["1Gi", "1500M", "2.5Gi", "4096", "1e9"])
values = st.sampled_from(["", "/a", "/a:/b", "kvpool", "x,y"])
variables = st.lists(
    st.builds(lambda n, v: {"name": n, "value": v}, st.sampled_from(["PYTHONPATH", "VLLM_PLUGINS", "HOME"]), values),
    max_size=4,
)
amounts = st.fixed_dictionaries({}, optional={"cpu": st.sampled_from(["1", "500m", "2"]), "memory": quantities})
engines = st.fixed_dictionaries(
    {"name": st.just("engine"), "image": st.just("vllm:1")},
    optional={
        "command": st.lists(words, max_size=3),
        "args": st.lists(words, max_size=3),
        "env": variables,
        "resources": st.fixed_dictionaries({}, optional={"requests": amounts, "limits": amounts}),
        "volumeMounts": st.just([{"name": "shm", "mountPath": "/dev/shm"}]),
    },
)
templates = st.fixed_dictionaries(
    {
        "spec": st.fixed_dictionaries(
            {"containers": engines.map(lambda engine: [engine, {"name": "other", "image": "o"}])},
            optional={
                "volumes": st.just([{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]),
                "initContainers": st.lists(st.just({"name": "first", "image": "f"}), max_size=1),
                "resources": st.fixed_dictionaries({}, optional={"requests": amounts, "limits": amounts}),
            },
        )
    },
    optional={
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "labels": st.dictionaries(st.sampled_from(["a", "kvpool.io/pool"]), st.just("chat")),
                "annotations": st.dictionaries(
                    st.sampled_from(["a", "config.linkerd.io/skip-inbound-ports"]), st.sampled_from(["1", "7700,5"])
                ),
            },
        )
    },
)


@settings(max_examples=150, deadline=None)
@given(templates)
def test_undone_nothing_is_left_of_it_and_done_twice_is_done_once(template: dict[str, Any]) -> None:
    first = inject(template, pool({}), SETTINGS)
    if isinstance(first, Injected):
        assert inject(first.template, pool({}), SETTINGS) == first
        assert restore(first.template) == template
        assert jsonpatch.make_patch(template, first.template).apply(template) == first.template
