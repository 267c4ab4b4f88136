"""The controller as a process of this machine, with no more rights than it documents, behind a door to the API server
that a test can shut."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from cluster.kube import Kube, wait_for
from cluster.provider import REPOSITORY
from kvpool_operator.controller.permissions import RULES

ACCOUNT = "kvpool-controller"
POLL_SECONDS = 1.0
ANSWER_SECONDS = 10
LOOPBACK = "127.0.0.1"


class Door:
    """A TCP way to the API server. Shut, it breaks what is open and refuses what comes."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.port = 0
        self.open()

    def open(self) -> None:
        self._listener = socket.create_server((LOOPBACK, self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def shut(self) -> None:
        assert self._listener
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in list(self._open):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
                far = socket.create_connection(self._target, timeout=5)
            except OSError:
                return
            far.settimeout(None)
            self._open |= {near, far}
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for each in (source, sink):
                try:
                    each.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
        finally:
            self._open.discard(source)


class Controller:
    """`start` and `kill` may be called again and again."""

    def __init__(
        self, kube: Kube, folder: Path, *arguments: str, everywhere: bool = True, behind_a_door: bool = True
    ) -> None:
        """everywhere: it may look at all namespaces, else at that of `kube` alone. arguments: more of its command.
        behind_a_door: else it goes to the API server itself, past this process."""
        self.kube, self.folder, self._everywhere, self._arguments = kube, folder, everywhere, arguments
        self._behind_a_door = behind_a_door
        self._process: subprocess.Popen[bytes] | None = None
        self.metrics_port, self.liveness_port, self.page_port = (_free_port() for _ in range(3))
        self._kubeconfig = folder / "controller.kubeconfig"
        self._make_account()

    def _make_account(self) -> None:
        """A service account with the documented rules, and a kubeconfig of it that goes through the door."""
        kube, owner = self.kube, {"namespace": self.kube.namespace, "name": ACCOUNT}
        kind, group = "ClusterRole" if self._everywhere else "Role", "rbac.authorization.k8s.io"
        metadata = {"name": ACCOUNT} if self._everywhere else owner
        role = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata}
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": kind, "name": ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", **owner}],
        }
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": owner}
        kube.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([account, role | {"rules": RULES}, binding]))
        token = kube.kubectl("create", "token", ACCOUNT).stdout.strip()
        config: dict[str, Any] = yaml.safe_load(kube.provided.kubeconfig.read_text())
        server = config["clusters"][0]["cluster"]["server"]
        host, _, port = server.removeprefix("https://").partition(":")
        if self._behind_a_door:
            self.door = Door(host, int(port))
            config["clusters"][0]["cluster"]["server"] = f"https://{LOOPBACK}:{self.door.port}"
        config["users"][0]["user"] = {"token": token}
        self._kubeconfig.write_text(json.dumps(config))

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def log_file(self) -> Path:
        return self.folder / "controller.log"

    def start(self) -> "Controller":
        paths = f"{REPOSITORY / 'agent'}:{REPOSITORY / 'operator'}"
        command = [
            sys.executable, "-m", "kvpool_operator.controller", "--poll-seconds", str(POLL_SECONDS), "--liveness",
            f"http://{LOOPBACK}:{self.liveness_port}/healthz", "--metrics-port", str(self.metrics_port),
            "--page-port", str(self.page_port),
        ]  # fmt: skip
        command += [] if self._everywhere else ["--namespace", self.kube.namespace]
        command += self._arguments
        environment = {"PYTHONPATH": paths, "KUBECONFIG": str(self._kubeconfig), "PATH": os.environ["PATH"]}
        environment["POD_NAMESPACE"] = self.kube.namespace
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, cwd=self.folder, stdout=log, stderr=log)
        return self

    def kill(self) -> None:
        """At once, wherever it is."""
        assert self._process
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def end(self) -> int:
        """As Kubernetes ends it; its exit code."""
        assert self._process
        self._process.terminate()
        try:
            return self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def healthy(self) -> bool:
        url = f"http://{LOOPBACK}:{self.liveness_port}/healthz"
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
            return bool(answer.status == 200)

    def metric(self, sample: str) -> float:
        """Value of a sample, written as in the exposition; 0 where it has none yet."""
        url = f"http://{LOOPBACK}:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
            lines = answer.read().decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{sample} ")), 0.0)

    def page(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self.page_port}/{path}", timeout=ANSWER_SECONDS) as answer:
            return str(answer.read().decode())

    def writes(self) -> float:
        """Calls that write, of all kinds: the API server itself makes nothing of one that changes nothing."""
        kinds = ("ConfigMap", "Service", "status", "Event")
        return sum(self.metric(f'kvpool_controller_writes_total{{object="{kind}"}}') for kind in kinds)

    def passes(self) -> float:
        return self.metric('kvpool_controller_passes_total{result="ok"}')

    def wait_passes(self, count: int) -> None:
        """Until `count` whole passes more have gone well."""
        before = wait_for("the controller's metrics", lambda: self.passes() + 1, 30) - 1
        wait_for(f"{count} passes", lambda: self.passes() >= before + count + 1, 60)

    def wait_quiet(self, count: int, state: Callable[[], object]) -> None:
        """Until `count` whole passes have gone by without a write, and with the same `state` at their end."""

        def look() -> bool:
            before = state(), self.writes()
            self.wait_passes(count)
            if (after := (state(), self.writes())) != before:
                raise ValueError((before, after))
            return True

        wait_for(f"{count} passes that write nothing", look, 60)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
