"""The controller's own rules: whose an object is, what a pod says, when a pass is due, how an agent is asked, and what
kopf may do."""

import asyncio
import copy
import dataclasses
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from agent_status import agent
from aiohttp import web

from kvpool_contract.names import SKIPPED_ANNOTATION
from kvpool_contract.status import encode_status
from kvpool_operator.controller import agents as agents_module
from kvpool_operator.controller import loops as loops_module
from kvpool_operator.controller.agents import Agents
from kvpool_operator.controller.loops import Loops
from kvpool_operator.controller.main import settings
from kvpool_operator.desired.objects import pool_objects
from kvpool_operator.desired.ownership import judge, owned
from kvpool_operator.desired.pods import AGENT_CONTAINER, CLIENT_CONTAINER, Pod, living
from kvpool_operator.desired.pool import read_pool
from kvpool_operator.inject.containers import AGENT, CLIENT

POOL = read_pool(
    {"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": {"name": "chat", "namespace": "a"}}
)
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
    assert (AGENT, CLIENT) == (AGENT_CONTAINER, CLIENT_CONTAINER)


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


# -- how an agent is asked ---------------------------------------------------------------------------

LOOPBACK = "127.0.0.1"
ASKED = Pod("p", "p-uid", LOOPBACK, injected=True, expected=True)


def ask(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[web.Request], Awaitable[web.StreamResponse]], times: int = 1
) -> list[tuple[bool, str]]:
    """Whether each ask got a status, and the error."""

    async def scenario() -> list[tuple[bool, str]]:
        app = web.Application()
        app.router.add_get("/status", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, LOOPBACK, 0)
        await site.start()
        server: Any = site._server
        monkeypatch.setattr(agents_module, "WORKER_PORT", server.sockets[0].getsockname()[1])
        asking = Agents()
        try:
            members = [(await asking.ask([ASKED]))[0] for _ in range(times)]
        finally:
            await asking.close()
            await runner.cleanup()
        return [(m.status is not None, m.error) for m in members]

    return asyncio.run(scenario())


async def good(_: web.Request) -> web.Response:
    return web.Response(body=encode_status(agent(member=ASKED.uid)))


def test_an_agent_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, good) == [(True, "")]


def test_what_is_no_status_is_told_in_few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_: web.Request) -> web.Response:
        return web.Response(status=500)

    async def elsewhere(_: web.Request) -> web.Response:
        raise web.HTTPFound("http://169.254.169.254/")

    async def endless(_: web.Request) -> web.Response:
        return web.Response(body=b" " * 2000)

    async def nonsense(_: web.Request) -> web.Response:
        return web.Response(body=b"<html>")

    async def silent(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async def another(_: web.Request) -> web.Response:
        return web.Response(body=encode_status(agent(member="other-uid")))

    assert ask(monkeypatch, another) == [(False, "another pod answers at its address")]
    assert ask(monkeypatch, broken) == [(False, "it answers 500")]
    assert ask(monkeypatch, elsewhere) == [(False, "it answers 302")]
    monkeypatch.setattr(agents_module, "MAX_ANSWER", 1000)
    assert ask(monkeypatch, endless) == [(False, "its status is longer than 1000 bytes")]
    ((_, sentence),) = ask(monkeypatch, nonsense)
    assert sentence.startswith("the agent's status can't be read: ")
    monkeypatch.setattr(agents_module, "TIMEOUT_SECONDS", 0.1)
    ((answered, sentence),) = ask(monkeypatch, silent)
    assert (answered, sentence) == (False, "no answer within 0 s")


def test_who_has_answered_may_miss_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    async def flaky(request: web.Request) -> web.Response:
        asked.append(1)
        return await good(request) if len(asked) in (1, 3) else web.Response(status=500)

    bad = (False, "it answers 500")
    assert ask(monkeypatch, flaky, 5) == [(True, ""), (True, ""), (True, ""), (True, ""), bad]


def test_many_that_are_silent_keep_neither_the_others_nor_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are asked at a time, and each would be waited for longer than this test lasts."""
    silent = [Pod(f"s{n}", f"s{n}-uid", "127.0.0.2", injected=True, expected=True) for n in range(9)]
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.host.partition(":")[0])
        if asked[-1] != LOOPBACK:
            await asyncio.sleep(60)
        return await good(request)

    async def scenario() -> list[str]:
        app = web.Application()
        app.router.add_get("/status", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", 0).start()
        monkeypatch.setattr(agents_module, "WORKER_PORT", runner.addresses[0][1])
        monkeypatch.setattr(agents_module, "PARALLEL_OF_POOL", 2)
        monkeypatch.setattr(agents_module, "TIMEOUT_SECONDS", 30)
        asking = Agents()
        try:
            await asking.ask([ASKED])
            monkeypatch.setattr(agents_module, "ASK_SECONDS", 0.5)
            return [member.error for member in await asking.ask([*silent, ASKED])]
        finally:
            await asking.close()
            await runner.cleanup()

    assert asyncio.run(scenario()) == ["no answer within 30 s"] * 9 + [""]
    assert (asked.count(LOOPBACK), asked.count("127.0.0.2")) == (2, 2)


def test_nobody_is_asked_without_an_address_or_an_agent_and_a_closed_port_is_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        monkeypatch.setattr(agents_module, "WORKER_PORT", taken.getsockname()[1])

    async def scenario() -> list[str]:
        asking = Agents()
        pods = [
            ASKED,
            Pod("q", "q-uid", "", injected=True, expected=False),
            Pod("r", "r-uid", LOOPBACK, injected=False, expected=False),
        ]
        try:
            return [member.error for member in await asking.ask(pods)]
        finally:
            await asking.close()

    assert asyncio.run(scenario()) == ["no connection", "no address", "no address"]


def test_kopf_watches_pods_of_pools_alone_and_leaves_no_trace() -> None:
    chosen = settings()
    assert list(chosen.watching.label_selectors.values()) == ["kvpool.io/pool"]
    assert (chosen.posting.enabled, chosen.scanning.disabled) == (False, True)
