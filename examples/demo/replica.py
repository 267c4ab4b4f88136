"""One replica of a pool on this machine: an agent process and a real vLLM server beside it, without Kubernetes.

The demo and the engine tests start replicas with it. Every process is the leader of a group of its own and is ended
by that group; every wait has a deadline and says what it waited for.
"""

import contextlib
import functools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from authority import CLUSTER, K8S_NAMESPACE, Authority, member_uri, write_identity

REPOSITORY = Path(__file__).resolve().parents[2]
MIB = 2**20
ENGINE_SECONDS = 240.0
LOOPBACK = "127.0.0.1"
# at least so many times longer may everything take that is waited for, as on an emulated processor
PATIENCE = float(os.environ.get("KVPOOL_PATIENCE", "1"))
T = TypeVar("T")
CLAIMS_KEPT = 100  # those of longer ago are in use
_claims: deque[socket.socket] = deque(maxlen=CLAIMS_KEPT)


class WaitError(RuntimeError):
    """What was waited for did not come in time."""


def patience() -> float:
    """How much longer things take here than on a machine with nothing else to do; six times at most."""
    return min(6.0, max(PATIENCE, os.getloadavg()[0] / (os.cpu_count() or 1)))


def wait_for(what: str, look: Callable[[], T], seconds: float, every: float = 0.1) -> T:
    """The first true value of `look`, which may fail while things come up; on a busy machine it is waited for longer.
    Raises WaitError."""
    began = time.monotonic()
    last: object = None
    while time.monotonic() < began + seconds * patience():
        try:
            last = look()
        except (OSError, ValueError, KeyError) as error:
            last = error
        else:
            if last:
                return last
        time.sleep(every)
    raise WaitError(f"{what}: not within {seconds:.0f} s; last seen: {last}")


def free_port() -> int:
    """A port that nobody listens on, below those that the system hands out to outgoing connections.

    Until its user listens there, a socket of ours for datagrams keeps it from other processes that ask here.
    """
    for port in random.sample(range(20_000, 32_000), 1000):
        claim = socket.socket(type=socket.SOCK_DGRAM)
        try:
            claim.bind((LOOPBACK, port))
            with socket.socket() as probe:
                probe.bind((LOOPBACK, port))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port
    raise WaitError("no free port between 20000 and 32000")


def get(url: str, seconds: float = 5.0) -> bytes:
    with urllib.request.urlopen(url, timeout=seconds) as answer:
        return bytes(answer.read())


def post(url: str, body: object, seconds: float = 300.0) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        text = answer.read()
    return json.loads(text) if text else None


@dataclass(frozen=True)
class Tools:
    """Where the interpreters and the model lie (hack/prepare.py makes them)."""

    engine_python: Path
    model: Path
    agent_python: Path = Path(sys.executable)

    @classmethod
    def prepared(cls) -> "Tools":
        def path(what: str) -> Path:
            command = [sys.executable, str(REPOSITORY / "hack/prepare.py"), what]
            return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())

        return cls(path("engine") / "bin/python", path("model"))


@dataclass
class Pool:
    """What all replicas share: a folder, the members file, the model's options, bounds of the agents.

    executor: vLLM's, `mp` (a worker process of its own) or `uni` (in the core process, its default on one GPU; on a CPU
    a server makes `mp` of it). engine_arguments: added to the server's own. tls: whether agents talk inside TLS, with
    certificates of an authority of this pool's own; else all their bytes go in clear. loading: Always, so that blocks
    can be counted, or Measured, as in a pool that says nothing.
    """

    tools: Tools
    folder: Path
    dtype: str = "float32"
    block_tokens: int = 128
    host_pool_bytes: int = 512 * MIB
    device_bytes: int = 256 * MIB
    max_model_len: int = 2048
    executor: str = "mp"
    agent: dict[str, Any] = field(default_factory=dict)
    engine_environment: dict[str, str] = field(default_factory=dict)
    engine_arguments: Sequence[str] = ()
    tls: bool = True
    loading: str = "Always"
    replicas: list["Replica"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.members.touch()
        self.authority = Authority()

    @property
    def members(self) -> Path:
        return self.folder / "members"

    @functools.cached_property
    def client(self) -> Path:
        """The folder with the plug-in, installed there when somebody first asks for it."""
        made = self.folder / "client"
        install = [str(self.tools.agent_python), "-m", "kvpool_client.install", str(made)]
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL, env=_agent_environment())
        return made

    def replica(self, name: str, **options: Any) -> "Replica":
        made = Replica(self, name, **options)
        self.replicas.append(made)
        return made

    def stop(self) -> None:
        for replica in self.replicas:
            replica.stop()


def _agent_environment() -> dict[str, str]:
    path = os.pathsep.join(str(REPOSITORY / part) for part in ("agent", "operator"))
    return dict(os.environ, PYTHONPATH=path)


class Replica:
    """An agent and an engine. `start_agent` first, as a native sidecar does."""

    def __init__(self, pool: Pool, name: str, agent: dict[str, Any] | None = None) -> None:
        """agent: fields of this agent's configuration that differ from the pool's."""
        self.pool = pool
        self.name = name
        self.folder = pool.folder / name
        (self.folder / "run").mkdir(parents=True)
        (self.folder / "empty").mkdir()
        self.peer_port, self.supervisor_port, self.worker_port, self.engine_port = (free_port() for _ in range(4))
        self.config: dict[str, Any] = {
            "version": 1,
            "pool": "demo",
            "arenaBytes": 1024 * MIB,
            "members": {"file": str(pool.members)},
            "tls": {"mode": "Files", "cluster": CLUSTER, "k8sNamespace": K8S_NAMESPACE},
            "engine": {"port": self.engine_port},
            "loading": {"mode": pool.loading},
            **({} if pool.tls else {"tls": {"mode": "Disabled"}}),
            **pool.agent,
            **(agent or {}),
        }
        self.agent_environment: dict[str, str] = {}
        self.agent_entry: Sequence[str] = ("-m", "kvpool_agent")
        self.agent_process: subprocess.Popen[bytes] | None = None
        self.listed = False
        self.engine_process: subprocess.Popen[bytes] | None = None
        self.engine_started = 0.0

    @property
    def member(self) -> str:
        return f"{self.name}-uid"

    @property
    def identity(self) -> Path:
        return self.folder / "identity"

    def certify(self) -> None:
        """A new certificate from the pool's authority; a running agent takes it over within a second."""
        authority = self.pool.authority
        certificate, key = authority.leaf(member_uri(self.config["pool"], self.member))
        write_identity(self.identity, certificate, key, authority.certificate)

    # -- processes -----------------------------------------------------------------------------------

    def start_agent(self) -> None:
        (self.folder / "agent.json").write_text(json.dumps(self.config))
        if not self.listed:
            self.listed = True
            with self.pool.members.open("a") as members:
                members.write(f"{LOOPBACK}:{self.peer_port}\n")
        command = [
            str(self.pool.tools.agent_python), *self.agent_entry, "--config", str(self.folder / "agent.json"),
            "--run-dir", str(self.folder / "run"), "--bind", LOOPBACK, "--peer-port", str(self.peer_port),
            "--supervisor-port", str(self.supervisor_port), "--worker-port", str(self.worker_port),
            "--identity-dir", str(self.identity),
        ]  # fmt: skip
        if self.pool.tls and not self.identity.exists():
            self.certify()
        environment = dict(_agent_environment(), KVPOOL_MEMBER_UID=self.member, **self.agent_environment)
        self.agent_process = self._spawn("agent", command, environment)
        wait_for(f"agent {self.name} started", lambda: self.probe("startedz"), 30)

    def start_engine(self, joined: bool = True, environment: dict[str, str] | None = None) -> None:
        pool = self.pool
        command = [
            str(pool.tools.engine_python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(pool.tools.model),
            "--served-model-name", "smol", "--host", LOOPBACK, "--port", str(self.engine_port), "--dtype", pool.dtype,
            "--max-model-len", str(pool.max_model_len), "--block-size", "32", "--enforce-eager",
            "--kv-cache-memory-bytes", str(pool.device_bytes), "--distributed-executor-backend", pool.executor,
            *pool.engine_arguments,
        ]  # fmt: skip
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        base = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        own = {"OMP_NUM_THREADS": "1", "VLLM_SERVER_DEV_MODE": "1", **offline, **pool.engine_environment}
        if joined:
            own |= {"PYTHONPATH": str(pool.client), "KVPOOL_CLIENT_CONFIG": json.dumps(self.client_config())}
        self.engine_started = time.monotonic()
        self.engine_process = self._spawn("engine", command, {**base, **own, **(environment or {})})

    def client_config(self) -> dict[str, Any]:
        return {
            "version": 1,
            "socket": str(self.folder / "run" / "engine.sock"),
            "hostPoolBytes": self.pool.host_pool_bytes,
            "blockTokens": self.pool.block_tokens,
            "allowUntested": False,
            "cacheNamespaces": self.config.get("requestNamespace", "Ignore") != "Ignore",
            "decodeOutput": False,
        }

    def _spawn(self, what: str, command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        # started in an empty folder: a folder named vllm in the working directory would shadow the package
        with (self.folder / f"{what}.log").open("ab") as log:
            return subprocess.Popen(
                command, env=environment, cwd=self.folder / "empty", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def wait_engine(self, seconds: float = ENGINE_SECONDS) -> None:
        def healthy() -> bool:
            if self.engine_process is not None and self.engine_process.poll() is not None:
                raise WaitError(f"engine {self.name} ended with {self.engine_process.returncode}: {self.log('engine')}")
            return bool(get(f"{self.engine_url}/health", 2) is not None)

        wait_for(f"engine {self.name} healthy", healthy, seconds, 0.25)
        if self.agent_process is not None:
            wait_for(f"engine {self.name} probed", lambda: self.status()["probe"]["state"] != "pending", 60)

    def wait_ready(self, seconds: float = 60) -> None:
        wait_for(f"agent {self.name} ready", lambda: self.probe("readyz"), seconds)

    def stop_engine(self) -> None:
        self.engine_process = _end_group(self.engine_process)

    def stop_agent(self) -> None:
        self.agent_process = _end_group(self.agent_process)

    def stop(self) -> None:
        self.stop_engine()
        self.stop_agent()

    def log(self, what: str, size: int = 3000) -> str:
        path = self.folder / f"{what}.log"
        return path.read_text(errors="replace")[-size:] if path.exists() else ""

    def worker_pid(self) -> int:
        """The worker's process id: the supervisor's one child."""
        assert self.agent_process is not None
        pid = self.agent_process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    # -- asking --------------------------------------------------------------------------------------

    @property
    def engine_url(self) -> str:
        return f"http://{LOOPBACK}:{self.engine_port}"

    def probe(self, path: str) -> bool:
        try:
            return bool(get(f"http://{LOOPBACK}:{self.supervisor_port}/{path}", 2))
        except urllib.error.HTTPError:
            return False

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(get(f"http://{LOOPBACK}:{self.worker_port}/status"))
        return found

    def complete(self, prompt: Sequence[int] | str, tokens: int = 4, **options: Any) -> Any:
        """A completion at temperature 0."""
        body = {"model": "smol", "prompt": prompt, "max_tokens": tokens, "temperature": 0, **options}
        return post(f"{self.engine_url}/v1/completions", body)

    def prompt_tokens(self) -> dict[str, int]:
        """The engine's own counters: prompt tokens computed, and cached on device, on host, by the pool."""
        text = get(f"{self.engine_url}/metrics").decode()

        def total(name: str, source: str) -> int:
            pattern = rf'^vllm:{name}_total{{[^}}]*source="{source}"[^}}]*}} ([0-9.e+]+)$'
            return int(sum(float(value) for value in re.findall(pattern, text, re.MULTILINE)))

        return {
            "computed": total("prompt_tokens_by_source", "local_compute"),
            **{
                word: total("prompt_tokens_cached_by_source", source)
                for word, source in (("device", "device"), ("host", "host"), ("pool", "p2p"))
            },
        }

    def forget_device(self) -> None:
        """Empties the engine's device cache and keeps its host tier."""
        post(f"{self.engine_url}/reset_prefix_cache", {})

    def forget_all(self) -> None:
        """Empties the engine's device cache and host tier."""
        post(f"{self.engine_url}/reset_prefix_cache?reset_external=true", {})


def _end_group(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
