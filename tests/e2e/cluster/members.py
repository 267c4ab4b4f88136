"""Members of a pool without a node: pod objects that no scheduler takes, and real agents of this machine, each bound to
the loopback address that stands in its pod's status."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from standin_engine import StandInEngine

from cluster.kube import Kube, wait_for
from cluster.provider import REPOSITORY
from kvpool_contract.names import PEER_PORT, POOL_LABEL

MIB = 2**20


class HostedMember:
    """A pod object, and once started its agent and its stand-in engine."""

    def __init__(self, kube: Kube, pool: str, number: int, folder: Path) -> None:
        self.kube, self.pool, self.name = kube, pool, f"{pool}-{number}"
        self.address = f"127.0.0.{number + 1}"
        self.folder = folder / self.name
        (self.folder / "run").mkdir(parents=True)
        self._members = folder / "members"
        self._agent: subprocess.Popen[bytes] | None = None
        self.engine: StandInEngine | None = None

    def create_pod(self, injected: bool = True, **annotations: str) -> "HostedMember":
        agent = {"name": "kvpool-agent", "image": "none", "restartPolicy": "Always"}
        spec = {
            "schedulerName": "nobody",
            "containers": [{"name": "engine", "image": "none"}],
            "initContainers": [agent] if injected else [],
        }
        metadata = {"name": self.name, "labels": {POOL_LABEL: self.pool}, "annotations": annotations}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self.uid = str(self.kube.core.create_namespaced_pod(self.kube.namespace, pod).metadata.uid)
        return self

    def say_started(self) -> "HostedMember":
        """The pod's status as a kubelet writes it once the agent's container runs."""
        state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        container = {"name": "kvpool-agent", "image": "none", "imageID": "", "restartCount": 0, "ready": True}
        status = {
            "phase": "Running",
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "initContainerStatuses": [{**container, "started": True, "state": state}],
        }
        self.kube.core.patch_namespaced_pod_status(self.name, self.kube.namespace, {"status": status})
        return self

    def mount(self, document: str) -> "HostedMember":
        """The configuration as it is to lie in the pod; a file that is there changes as a kubelet changes it."""
        (self.folder / "new.json").write_text(document)
        (self.folder / "new.json").rename(self.folder / "agent.json")
        return self

    def start_agent(self, configuration: dict[str, Any] | None = None) -> "HostedMember":
        """configuration: as the pool's ConfigMap has it, addresses and sizes become this machine's; without one what
        was mounted holds."""
        if configuration is not None:
            with self._members.open("a") as members:
                members.write(f"{self.address}:{PEER_PORT}\n")
            own = {"members": {"file": str(self._members)}, "arenaBytes": 4 * MIB}
            self.mount(json.dumps(configuration | own))
        command = [
            sys.executable, "-m", "kvpool_agent", "--config", str(self.folder / "agent.json"), "--run-dir",
            str(self.folder / "run"), "--bind", self.address,
        ]  # fmt: skip
        paths = f"{REPOSITORY / 'agent'}:{REPOSITORY / 'operator'}"
        environment = dict(os.environ, PYTHONPATH=paths, KVPOOL_MEMBER_UID=self.uid)
        with (self.folder / "agent.log").open("ab") as log:
            self._agent = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        return self

    def attach(self, **options: Any) -> "HostedMember":
        self.engine = StandInEngine(str(self.folder / "run" / "engine.sock"), **options).start()
        wait_for(f"{self.name} attached", lambda: self.engine and self.engine.session.attached, 30)
        return self

    def stop_agent(self) -> None:
        if self._agent is not None:
            self._agent.terminate()
            self._agent.wait(60)
            self._agent = None

    def stop(self) -> None:
        if self.engine is not None:
            self.engine.close()
        self.stop_agent()
        self.delete_pod()

    def delete_pod(self) -> None:
        self.kube.kubectl("delete", "pod", self.name, "--ignore-not-found", "--grace-period=0", "--force")
