#!/usr/bin/env python3
"""The control plane alone at scale: `make soak` runs it before the agents' soak; SCALE_QUICK=1 for a tenth of it.

    scale.py [--pools 200] [--pods 3000] [--foreign 3000] [--seconds 60] [--patience 1200]

A real API server and controller-manager, the controller as a process under its own account, and a fake kubelet with a
server that answers for all agents. It prints what the controller costs at rest and per pod, how soon a change shows,
that pods which belong to no pool cost it nothing, what silent agents do to the others, and how long reviews take. The
exit status is 1 when a pool's status is not true at the end of a phase.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

from cluster import provider
from cluster.controllers import Controller
from cluster.kube import Kube, wait_for
from cluster.provider import Provided
from fake_agents import WARM, WARMING, FakeAgents
from fake_kubelet import NODES, SCHEDULER, FakeKubelet, route
from pod_templates import engine, joined, pool, template
from reviews import measure_reviews
from scale_api import MERGE, Api, Document, Seen, of_the_controller

POOLS_OF_A_NAMESPACE = 10
GROUP = "/apis/kvpool.io/v1alpha1"
SPEC: Document = {"transport": {"tls": {"mode": "Disabled"}}}  # the agents here have no certificates
POLL_SECONDS = "10"
SETTLE_SECONDS, CHURN = 15.0, 25  # changes of foreign pods per second
SAMPLES = 12
ISOLATED = "KVPOOL_SCALE_ISOLATED"


class Scale:
    """One run against a running control plane."""

    def __init__(self, api: Api, options: argparse.Namespace, pid: int) -> None:
        self.api, self.options, self.pid = api, options, pid
        self.agents = FakeAgents()
        self.kubelet = FakeKubelet(api, self.agents)
        self.pools_of_pods: dict[str, str] = {}
        self.silent: set[str] = set()
        self.pools = Seen(api, f"{GROUP}/kvcachepools")
        self.configurations = Seen(api, "/api/v1/configmaps", "labelSelector=kvpool.io%2Fpool")
        self.pods = Seen(api, "/api/v1/pods", f"fieldSelector=spec.schedulerName%3D{SCHEDULER}")
        self.keys = [(f"scale-{n // POOLS_OF_A_NAMESPACE}", f"pool-{n}") for n in range(options.pools)]
        self.each = options.pods // options.pools
        self.rows: list[tuple[str, str]] = []

    # -- what is there --------------------------------------------------------------------------------

    async def run(self) -> None:
        await self.kubelet.start()
        following = [asyncio.ensure_future(s.follow()) for s in (self.pools, self.configurations, self.pods)]
        try:
            await self._phases()
        finally:
            for task in following:
                task.cancel()
            self.agents.stop()
            await self.kubelet.stop()

    async def _phases(self) -> None:
        self.note("memory, nothing there", f"{_rss(self.pid):.0f} MB")
        with self._told("pools made") as told:
            await self._make_pools()
        self.note(f"{len(self.keys)} pools made, all with configuration and status", told(time.monotonic()))
        with self._told("pods started") as told:
            calls = await self.api.calls()
            await self._make_pods()
            shown = time.monotonic()
            await asyncio.sleep(SETTLE_SECONDS)  # what follows of it is counted, too: calls and CPU
            made = of_the_controller(calls, await self.api.calls())
        self.note(f"{self.options.pods} pods started, all shown ready", told(shown))
        self.note(
            "calls to the API server per started pod", f"{sum(made.values()) / self.options.pods:.2f} ({_list(made)})"
        )
        rests = [await self.at_rest("at rest"), await self.at_rest("at rest again")]
        await self.latencies("all agents answer")
        await self._make_foreign()
        rests.append(await self.at_rest(f"with {self.options.foreign} foreign pods"))
        churn = asyncio.ensure_future(self._churn())
        rests.append(await self.at_rest(f"and {CHURN} changes of them a second"))
        churn.cancel()
        self.note("memory after all", f"{_rss(self.pid):.0f} MB, most {_rss(self.pid, 'VmHWM'):.0f} MB")
        quiet = self.keys[: len(self.keys) // 4]
        self._silence(uid for uid, name in self.pools_of_pods.items() if name in {name for _, name in quiet})
        await self._ready("the silent pools told", lambda key: "0" if key in quiet else str(self.each))
        await self.at_rest(f"all agents of {len(quiet)} pools silent")
        await self.latencies("a quarter of the pools silent")
        self._silence(self.pools_of_pods)
        await self._ready("silence told", lambda key: "0")
        await self.at_rest("all agents silent")
        self._silence(())
        began = time.monotonic()
        await self._ready("all answer again", lambda key: str(self.each))
        self.note("all silent agents answer again: shown after", f"{time.monotonic() - began:.1f} s")

    async def _make_pools(self) -> None:
        for name in dict.fromkeys(namespace for namespace, _ in self.keys):
            await self.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
            await _until(f"account of {name}", lambda n=name: self._account(n))
        for namespace, name in self.keys:
            document = {
                "apiVersion": "kvpool.io/v1alpha1",
                "kind": "KVCachePool",
                "metadata": {"name": name},
                "spec": SPEC,
            }
            await self.api.call("POST", f"{GROUP}/namespaces/{namespace}/kvcachepools", document)
        await self.pools.until(
            "every pool has a status", lambda seen: self._all(lambda p: "status" in p), self.options.patience
        )

    async def _account(self, namespace: str) -> bool:
        with contextlib.suppress(RuntimeError):
            await self.api.call("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
            return True
        return False

    async def _make_pods(self) -> None:
        async def one(key: tuple[str, str], number: int, body: Document) -> None:
            document = {**body, "metadata": {**body["metadata"], "name": f"{key[1]}-{number}"}}
            made = await self.api.call("POST", f"/api/v1/namespaces/{key[0]}/pods", document)
            self.pools_of_pods[made["metadata"]["uid"]] = key[1]

        work = []
        for key in self.keys:
            body = _pod(key[1])
            work += [one(key, number, body) for number in range(self.each)]
        await asyncio.gather(*work)
        await self._ready("every pod shown ready", lambda key: str(self.each))

    async def _make_foreign(self) -> None:
        wanted = len(self.kubelet.running) + self.options.foreign
        containers = [{"name": f"c{n}", "image": "none"} for n in range(3)]

        async def one(number: int) -> None:
            namespace = self.keys[number % len(self.keys)][0]
            spec = {"schedulerName": SCHEDULER, "nodeName": f"fake-{number % NODES}", "containers": containers}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"foreign-{number}"}, "spec": spec}
            await self.api.call("POST", f"/api/v1/namespaces/{namespace}/pods", body)

        await asyncio.gather(*(one(number) for number in range(self.options.foreign)))
        await _until("foreign pods run", lambda: _now(len(self.kubelet.running) >= wanted), self.options.patience)
        await asyncio.sleep(SETTLE_SECONDS)

    async def _churn(self) -> None:
        foreign = [pod for key, pod in self.pods.objects.items() if key[1].startswith("foreign-")]
        for turn in range(1, 10**6):
            for pod in foreign:
                await self.kubelet.say(pod, ready=True, restarts=turn)
                await asyncio.sleep(1 / CHURN)

    def _silence(self, uids: Iterable[str]) -> None:
        self.silent = set(uids)
        self.agents.silence(self.silent)

    def _all(self, holds: Callable[[Document], bool]) -> bool:
        return all(key in self.pools.objects and holds(self.pools.objects[key]) for key in self.keys)

    async def _ready(self, what: str, count: Callable[[tuple[str, str]], str]) -> None:
        """Until each pool shows so many ready members."""

        def right() -> int:
            shown = self.pools.objects
            return sum(
                shown.get(key, {}).get("status", {}).get("ready") == f"{count(key)}/{self.each}" for key in self.keys
            )

        try:
            await self.pools.until(what, lambda _: right() == len(self.keys), self.options.patience)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {right()} of {len(self.keys)} pools") from None

    # -- what is measured -----------------------------------------------------------------------------

    async def at_rest(self, what: str) -> float:
        """CPU of the controller and its calls per second while no pool changes."""
        calls, cpu, asked, began = await self.api.calls(), _cpu(self.pid), self.agents.asked, time.monotonic()
        await asyncio.sleep(self.options.seconds)
        took, used = time.monotonic() - began, _cpu(self.pid) - cpu
        made = of_the_controller(calls, await self.api.calls())
        rate = sum(made.values()) / took
        self.note(
            what,
            f"{100 * used / took:.1f} % of a core, {rate:.2f} calls/s ({_list(made)} in {took:.0f} s), "
            f"{(self.agents.asked - asked) / took:.0f} agents asked/s, {_rss(self.pid):.0f} MB",
        )
        return rate

    async def latencies(self, what: str) -> None:
        """A pool is changed: until its ConfigMap and its status say so. An agent turns unready and ready again:
        until the status shows it. Only of pools whose agents answer."""
        answering = [key for key in self.keys if key[1] not in {self.pools_of_pods[uid] for uid in self.silent}]
        configured, told, shown = [], [], []
        for n in range(SAMPLES):
            key = answering[n * len(answering) // SAMPLES]
            first, second = await self._change_pool(key, 3 + n % 5)
            configured.append(first)
            told.append(second)
            shown.append(await self._turn_ready(key))
        self.note(f"{what}: a changed pool's ConfigMap", _spread(configured))
        self.note(f"{what}: a changed pool's status", _spread(told))
        self.note(f"{what}: a pod that turns ready shows", _spread(shown))

    async def _change_pool(self, key: tuple[str, str], streams: int) -> tuple[float, float]:
        streams = streams if self._streams(key) != streams else streams + 7
        path = f"{GROUP}/namespaces/{key[0]}/kvcachepools/{key[1]}"
        began = time.monotonic()
        changed = await self.api.call("PATCH", path, {"spec": {"prewarm": {"maxStreams": streams}}}, MERGE)
        generation = changed["metadata"]["generation"]
        await self.configurations.until("the ConfigMap", lambda _: self._streams(key) == streams, self.options.patience)
        configured = time.monotonic() - began
        await self.pools.until(
            "the status",
            lambda seen: seen.objects[key].get("status", {}).get("observedGeneration") == generation,
            self.options.patience,
        )
        return configured, time.monotonic() - began

    def _streams(self, key: tuple[str, str]) -> int:
        found = self.configurations.objects.get((key[0], f"{key[1]}-kvpool"), {})
        return int(json.loads(found["data"]["agent.json"])["prewarm"]["maxStreams"]) if found else 0

    async def _turn_ready(self, key: tuple[str, str]) -> float:
        """Seconds from the kubelet's word that the pod is ready."""
        pod = self.pods.objects[key[0], f"{key[1]}-0"]
        uid = pod["metadata"]["uid"]
        self.agents.turn(uid, WARMING)
        await self.kubelet.say(pod, ready=False)
        await self._shows(key, self.each - 1)
        self.agents.turn(uid, WARM)
        began = time.monotonic()
        await self.kubelet.say(pod, ready=True)
        await self._shows(key, self.each)
        return time.monotonic() - began

    async def _shows(self, key: tuple[str, str], ready: int) -> None:
        wanted = f"{ready}/{self.each}"
        await self.pools.until(
            wanted, lambda seen: seen.objects[key]["status"]["ready"] == wanted, self.options.patience
        )

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[Callable[[float], str]]:
        """Gives what tells, of a time at which it was over, what it took."""
        print(time.strftime("%H:%M:%S"), what, flush=True)
        began, cpu = time.monotonic(), _cpu(self.pid)
        yield lambda over: f"{over - began:.1f} s, {_cpu(self.pid) - cpu:.1f} CPU-s, {_rss(self.pid):.0f} MB"

    def note(self, what: str, value: str) -> None:
        self.rows.append((what, value))
        print(f"{time.strftime('%H:%M:%S')} {what}: {value}", flush=True)


def _pod(name: str) -> Document:
    """A pod of the pool as it comes out of the injector."""
    injected = joined(template(engine(args=["--model", "m"])), pool(**SPEC))
    labels = {**injected["metadata"].get("labels", {}), "kvpool.io/pool": name}
    spec = {**injected["spec"], "schedulerName": SCHEDULER}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**injected["metadata"], "labels": labels}, "spec": spec}


async def _now(value: bool) -> bool:
    return value


async def _until(what: str, look: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not await look():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        await asyncio.sleep(0.1)


def _cpu(pid: int) -> float:
    """Seconds that the process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss(pid: int, field: str = "VmRSS") -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1000


def _list(counts: "dict[str, int] | Counter[str]") -> str:
    return ", ".join(f"{name} {n}" for name, n in counts.items())


def _spread(seconds: list[float]) -> str:
    return f"median {statistics.median(seconds):.2f} s, most of {len(seconds)} {max(seconds):.2f} s"


def go(provided: Provided, folder: Path, options: argparse.Namespace) -> list[tuple[str, str]]:
    kube = Kube(provided, "default")
    kube.install_crd()
    controller = Controller(kube, folder, "--poll-seconds", POLL_SECONDS, behind_a_door=False).start()
    wait_for("the controller", controller.healthy, 60)

    async def measure() -> list[tuple[str, str]]:
        api = Api(provided.kubeconfig)
        scale = Scale(api, options, controller.pid)
        try:
            await scale.run()
        finally:
            await api.close()
        assert not scale.kubelet.failures, scale.kubelet.failures[:3]
        return scale.rows

    try:
        rows = asyncio.run(measure())
    finally:
        if controller.running:
            controller.end()
    return rows + measure_reviews(kube, folder)


def main() -> None:
    quick = 10 if os.environ.get("SCALE_QUICK") else 1
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, count in (("pools", 200), ("pods", 3000), ("foreign", 3000), ("seconds", 60)):
        parser.add_argument(f"--{name}", type=int, default=count // quick)
    parser.add_argument(
        "--patience", type=int, default=1200, help="seconds that a phase may take (default %(default)s)"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a cluster must not be left behind
    if reason := provider.lacking():
        print(f"scale: not run, {reason}")
        sys.exit(0)
    if not os.environ.get(ISOLATED):  # agents have one port, which on a machine at work is somebody's
        os.environ[ISOLATED] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    route()
    with tempfile.TemporaryDirectory(prefix="kvpool-scale-") as folder, provider.provide("control") as provided:
        rows = go(provided, Path(folder), options)
    print("\n| what | measured |\n|---|---|")
    for row in rows:
        print(f"| {row[0]} | {row[1]} |")


if __name__ == "__main__":
    main()
