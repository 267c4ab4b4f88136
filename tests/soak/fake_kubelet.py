"""A kubelet without containers: takes the pods that name it as their scheduler, binds each to one of its nodes, gives
it an address, and says of its containers what a kubelet says of them.

Addresses come from a range for benchmarks that the loopback device answers for (`route`), so that a test's server can
stand behind all of them. Its nodes stay ready as long as it runs.
"""

import asyncio
import contextlib
import ipaddress
import subprocess
from datetime import UTC, datetime

from fake_agents import FakeAgents
from scale_api import STATUS, Api, Document

from kvpool_contract.names import POOL_LABEL

SCHEDULER = "fake-kubelet"
NODES = 8
RANGE = ipaddress.ip_network("198.18.0.0/15")  # RFC 2544
LEASE_SECONDS = 4.0
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


def route() -> None:
    """This network namespace answers at every address of the range."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "route", "replace", "local", str(RANGE), "dev", "lo"], check=True)


class FakeKubelet:
    """`addresses`: that of each pod by its UID; `running`: pods that it has started."""

    def __init__(self, api: Api, agents: FakeAgents) -> None:
        self._api, self._agents = api, agents
        self.addresses: dict[str, str] = {}
        self.running: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.failures: list[str] = []

    async def start(self) -> None:
        for number in range(NODES):
            name = f"fake-{number}"
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            await self._api.call("POST", "/api/v1/nodes", node)
            lease = {
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": name, "namespace": "kube-node-lease"},
                "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _now()},
            }  # fmt: skip
            await self._api.call("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", lease)
            await self._say_ready(name)
        self._spawn(self._renew())
        self._spawn(self._follow())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def say(self, pod: Document, *, ready: bool, restarts: int = 0) -> None:
        """The pod's status with its containers running, and ready or not."""
        init = [
            {**_container(c["name"], restarts), "ready": ready, "started": True, "state": RUNNING}
            for c in pod["spec"].get("initContainers") or []
            if c.get("restartPolicy") == "Always"
        ]
        containers = [
            {**_container(c["name"], restarts), "ready": True, "started": True, "state": RUNNING}
            for c in pod["spec"]["containers"]
        ]
        address = self.addresses[pod["metadata"]["uid"]]
        holds = "True" if ready else "False"
        status = {
            "phase": "Running", "hostIP": "198.18.0.1", "hostIPs": [{"ip": "198.18.0.1"}], "podIP": address,
            "podIPs": [{"ip": address}], "initContainerStatuses": init, "containerStatuses": containers,
            "conditions": [{"type": kind, "status": holds} for kind in ("ContainersReady", "Ready")],
        }  # fmt: skip
        await self._api.call("PATCH", f"{_path(pod)}/status", {"status": status}, STATUS)

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _say_ready(self, name: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}
        status = {"conditions": [condition], "allocatable": {"pods": "2000"}, "capacity": {"pods": "2000"}}
        await self._api.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, STATUS, first=True)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS)
            for number in range(NODES):
                path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/fake-{number}"
                with contextlib.suppress(RuntimeError, OSError, TimeoutError):
                    await self._api.call("PATCH", path, {"spec": {"renewTime": _now()}}, STATUS, first=True)
                    await self._say_ready(f"fake-{number}")

    async def _follow(self) -> None:
        async for kind, pod in self._api.watch("/api/v1/pods", f"fieldSelector=spec.schedulerName%3D{SCHEDULER}"):
            if kind == "ADDED" and pod["metadata"]["uid"] not in self.addresses:
                self._spawn(self._run(pod))

    async def _run(self, pod: Document) -> None:
        """Bound where it is not, then started, then ready, as things that a watch sees one after another. One without
        an agent is ready at once."""
        metadata = pod["metadata"]
        number = len(self.addresses) + 16
        self.addresses[metadata["uid"]] = str(RANGE[number])
        node = {"apiVersion": "v1", "kind": "Node", "name": f"fake-{number % NODES}"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": metadata["name"]}, "target": node}
        try:
            if not pod["spec"].get("nodeName"):
                await self._api.call("POST", f"{_path(pod)}/binding", binding)
            if pod["spec"].get("initContainers"):
                pool = metadata["labels"][POOL_LABEL]
                self._agents.know(metadata["uid"], self.addresses[metadata["uid"]], pool)
                await self.say(pod, ready=False)
            await self.say(pod, ready=True)
        except (RuntimeError, OSError) as error:
            self.failures.append(str(error))
        self.running.add(metadata["uid"])


def _path(pod: Document) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _container(name: str, restarts: int) -> Document:
    return {"name": name, "image": "none", "imageID": "", "restartCount": restarts}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
