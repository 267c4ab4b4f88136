"""The controller's own rules: whose an object is, what a pod says, when a pass is due, and what kopf may do."""

import asyncio
import copy
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvpool_contract.names import SKIPPED_ANNOTATION
from kvpool_operator.controller import loops as loops_module
from kvpool_operator.controller.loops import Loops
from kvpool_operator.controller.main import settings
from kvpool_operator.desired.objects import pool_objects
from kvpool_operator.desired.ownership import judge, owned
from kvpool_operator.desired.pods import AGENT_CONTAINER, CLIENT_CONTAINER, Pod, living
from kvpool_operator.desired.pool import read_pool
from kvpool_operator.inject import Injected, Settings, inject
from kvpool_operator.inject.containers import agent_container, client_container
from kvpool_operator.inject.resources import Bounds

POOL_DOCUMENT = {
    "apiVersion": "kvpool.io/v1alpha1",
    "kind": "KVCachePool",
    "metadata": {"name": "chat", "namespace": "a"},
    "spec": {"transport": {"tls": {"mode": "Disabled"}}},
}
POOL = read_pool(POOL_DOCUMENT)
METADATA = {"name": "chat", "uid": "1"}
CONFIG_MAP, SERVICE = (owned(o, METADATA) for o in pool_objects(POOL))
KEY = ("a", "chat")


# -- whose an object is ------------------------------------------------------------------------------


def changed(wanted: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    found = copy.deepcopy(wanted)
    change(found)
    return found


@pytest.mark.parametrize(
    ("verdict", "change"),
    [
        ("made", lambda o: None),
        ("made", lambda o: o["metadata"].update(annotations={"a": "b"}, uid="9")),
        ("made", lambda o: o["metadata"]["labels"].update(mine="kept")),
        ("make", lambda o: o["metadata"].pop("ownerReferences")),
        ("make", lambda o: o["metadata"]["ownerReferences"][0].update(uid="of a former pool")),
        ("another's", lambda o: o["metadata"].pop("labels")),
        ("another's", lambda o: o["metadata"]["labels"].update({"kvpool.io/pool": "other"})),
        ("another's", lambda o: o["metadata"]["ownerReferences"][0].update(kind="Deployment")),
        ("another's", lambda o: o["metadata"]["ownerReferences"][0].update(apiVersion="other.io/v1")),
        ("another's", lambda o: o["metadata"]["ownerReferences"][0].update(name="other")),
    ],
)
@pytest.mark.parametrize("wanted", [CONFIG_MAP, SERVICE], ids=["ConfigMap", "Service"])
def test_whose_an_object_is(wanted: dict[str, Any], verdict: str, change: Callable[[dict[str, Any]], Any]) -> None:
    assert judge(changed(wanted, change), wanted) == verdict


def test_what_is_missing_or_edited_is_made() -> None:
    assert judge(None, CONFIG_MAP) == "make"
    assert judge(changed(CONFIG_MAP, lambda o: o["data"].update({"agent.json": ""})), CONFIG_MAP) == "make"
    assert judge(changed(CONFIG_MAP, lambda o: o["data"].update(other="")), CONFIG_MAP) == "made"
    assert judge(changed(SERVICE, lambda o: o["spec"].update(publishNotReadyAddresses=False)), SERVICE) == "make"
    assert judge(changed(SERVICE, lambda o: o["spec"]["ports"].clear()), SERVICE) == "make"
    assert judge(changed(SERVICE, lambda o: o["spec"]["ports"][0].update(nodePort=1)), SERVICE) == "made"


def test_a_dependent_holds_up_no_deletion_and_the_plain_object_stays_as_it_is() -> None:
    (reference,) = CONFIG_MAP["metadata"]["ownerReferences"]
    assert (reference["uid"], reference["controller"], reference["blockOwnerDeletion"]) == ("1", True, False)
    assert all("ownerReferences" not in o["metadata"] for o in pool_objects(POOL))


# -- what a pod says ---------------------------------------------------------------------------------


def pod(name: str, state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    states = [] if state is None else [{"name": AGENT_CONTAINER, **state}]
    return {
        "metadata": {"name": name, "uid": f"{name}-uid"},
        "spec": {"initContainers": [{"name": AGENT_CONTAINER}]},
        "status": {"podIP": "10.0.0.1", "initContainerStatuses": states, **status},
    }


def test_the_injectors_container_is_the_one_that_is_looked_for() -> None:
    agent_made = agent_container(POOL, "i", "r", (), Bounds(), as_root=False)
    client_made = client_container("i", Bounds(), as_root=False)
    assert (agent_made["name"], client_made["name"]) == (AGENT_CONTAINER, CLIENT_CONTAINER)


def test_the_mode_of_a_pods_agent_is_what_the_injector_has_given_it() -> None:
    for mode in ("Managed", "Secret", "Disabled"):
        tls = {"mode": mode} | ({"secretRef": {"name": "s"}} if mode == "Secret" else {})
        spec = {"transport": {"tls": tls}}
        pool = read_pool({**POOL_DOCUMENT, "spec": spec})
        given = {"spec": {"containers": [{"name": "engine", "image": "i"}]}}
        result = inject(given, pool, Settings(image="i"))
        assert isinstance(result, Injected)
        metadata = {**result.template["metadata"], "name": "p", "uid": "u", "namespace": "a"}
        (found,) = living([{**result.template, "metadata": metadata}])
        assert (found.tls, found.pool, found.k8s_namespace) == (mode, "chat", "a")


def test_living_pods_and_whether_their_agents_should_answer() -> None:
    copier = {"name": CLIENT_CONTAINER, "restartCount": 1}
    going = pod("going", {"started": True})
    going["metadata"]["deletionTimestamp"] = "now"
    bare = pod("bare")
    del bare["spec"]["initContainers"]
    bare["metadata"]["annotations"] = {SKIPPED_ANNOTATION: "host_network"}
    objects = [
        pod("z", {"started": True}),
        pod("crashing", {"started": False, "restartCount": 2}),
        pod("pulling", {"started": False, "restartCount": 0}),
        pod("unpulled", {"state": {"waiting": {"reason": "ErrImagePull"}}}),
        pod("uncopied", initContainerStatuses=[{**copier, "state": {"running": {}}}]),
        pod("copied", initContainerStatuses=[{**copier, "state": {"terminated": {"exitCode": 0}}}]),
        {"metadata": {"name": "new", "uid": "new-uid"}},
        pod("failed", phase="Failed"),
        pod("done", phase="Succeeded"),
        going,
        bare,
    ]
    assert [dataclasses.replace(each, sidecar=None) for each in living(objects)] == [
        Pod("bare", "bare-uid", "10.0.0.1", injected=False, expected=False, skipped="host_network"),
        Pod("copied", "copied-uid", "10.0.0.1", injected=True, expected=False),
        Pod("crashing", "crashing-uid", "10.0.0.1", injected=True, expected=True),
        Pod("new", "new-uid", "", injected=False, expected=False),
        Pod("pulling", "pulling-uid", "10.0.0.1", injected=True, expected=False),
        Pod("uncopied", "uncopied-uid", "10.0.0.1", injected=True, expected=False, stuck="CrashLoopBackOff"),
        Pod("unpulled", "unpulled-uid", "10.0.0.1", injected=True, expected=False, stuck="ImagePullBackOff"),
        Pod("z", "z-uid", "10.0.0.1", injected=True, expected=True),
    ]


# -- when a pass is due ------------------------------------------------------------------------------


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.001)


async def no_keys() -> list[tuple[str, str]]:
    return []


def run_loops(
    monkeypatch: pytest.MonkeyPatch,
    once: Callable[[tuple[str, str]], Awaitable[bool]],
    scenario: Callable[[Loops], Awaitable[None]],
    every: float = 3600.0,
    keys: Callable[[], Awaitable[list[tuple[str, str]]]] = no_keys,
    quiet: float = 0.01,
) -> None:
    async def all_of_it() -> None:
        loops = Loops(once, keys, every)
        loops.start()
        try:
            await scenario(loops)
        finally:
            await loops.stop()

    monkeypatch.setattr(loops_module, "QUIET_SECONDS", quiet)
    asyncio.run(all_of_it())


def test_a_burst_is_one_pass_more_and_a_pool_never_has_two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    gate = asyncio.Event()

    async def once(_: tuple[str, str]) -> bool:
        passes.append(1)
        await gate.wait()
        passes[-1] = 0
        return True

    async def scenario(loops: Loops) -> None:
        loops.wake(KEY)
        await until(lambda: passes == [1])
        for _ in range(100):
            loops.wake(KEY)
        await asyncio.sleep(0.05)
        assert passes == [1]
        gate.set()
        await until(lambda: len(passes) == 2)
        await asyncio.sleep(0.1)
        assert passes == [0, 0]

    run_loops(monkeypatch, once, scenario)


def test_a_pass_that_fails_is_repeated_and_touches_no_other_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    async def once(key: tuple[str, str]) -> bool:
        seen.append(key[1])
        if key[1] == "bad":
            raise OSError("no way")
        return True

    async def scenario(loops: Loops) -> None:
        loops.wake(("a", "bad"))
        loops.wake(("a", "good"))
        await until(lambda: seen.count("bad") >= 2 and seen.count("good") >= 2)

    run_loops(monkeypatch, once, scenario, every=0.02)


def test_a_pool_whose_passes_fail_for_hours_is_looked_after_when_they_succeed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes: list[int] = []

    async def once(_: tuple[str, str]) -> bool:
        passes.append(1)
        if len(passes) < 1100:
            raise OSError("no way")
        return True

    async def scenario(loops: Loops) -> None:
        loops.wake(KEY)
        await until(lambda: len(passes) >= 1100)

    monkeypatch.setattr(loops_module.log, "warning", lambda *_: None)
    run_loops(monkeypatch, once, scenario, every=0.0, quiet=0.0)


def test_a_pool_that_is_gone_is_looked_after_no_more_and_again_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[str] = []

    async def once(_: tuple[str, str]) -> bool:
        passes.append("")
        return False

    async def scenario(loops: Loops) -> None:
        loops.wake(KEY)
        await until(lambda: not loops._due)
        await asyncio.sleep(0.1)
        assert len(passes) == 1
        loops.wake(KEY)
        await until(lambda: len(passes) == 2)

    run_loops(monkeypatch, once, scenario, every=0.01)


def test_a_pool_that_no_watch_has_told_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    listed, seen = [], []

    async def keys() -> list[tuple[str, str]]:
        listed.append("")
        if len(listed) == 1:
            raise OSError("not now")
        return [KEY]

    async def once(key: tuple[str, str]) -> bool:
        seen.append(key)
        return True

    async def scenario(_: Loops) -> None:
        await until(lambda: seen == [KEY])

    monkeypatch.setattr(loops_module, "RESYNC_SECONDS", 0.01)
    run_loops(monkeypatch, once, scenario, keys=keys)


def test_kopf_watches_pods_of_pools_alone_and_leaves_no_trace() -> None:
    chosen = settings()
    assert list(chosen.watching.label_selectors.values()) == ["kvpool.io/pool"]
    assert (chosen.posting.enabled, chosen.scanning.disabled) == (False, True)
