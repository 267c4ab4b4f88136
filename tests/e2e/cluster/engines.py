"""The engines of the tests: a Deployment of real vLLM with a small real model, joined to a pool by its label.

The engine's environment is 3 GB, so it is no part of an image: environment, interpreter and model are mounted
from this machine, at their own paths, in the test's manifest only.
"""

import http.client
import json
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from cluster.images import ENGINE_IMAGE
from cluster.kube import Kube, Pod, wait_for
from cluster.provider import REPOSITORY, prepared
from kvpool_cli import forward
from kvpool_contract.status import AgentStatus, decode_status

NAME = "chat"
SELECTOR = f"app={NAME}"
MODEL_NAME = "smol"
PORT = 8000
BLOCK_TOKENS = 128
WORK_DIR = "/engine"
LIBRARY_DIR, SYSTEM_LIBRARY = "/engine-libraries", "libnuma.so.1"  # what the CPU build needs besides its own
START_SECONDS = 420  # of one engine on two busy cores
REQUEST_SECONDS = 120
ANSWER_SECONDS = 20  # of a status or metrics: of a busy node, and by way of the API server

POOL = {
    "apiVersion": "kvpool.io/v1alpha1",
    "kind": "KVCachePool",
    "metadata": {"name": NAME, "namespace": "default"},
    "spec": {
        "engine": {"blockTokens": BLOCK_TOKENS, "hostPool": {"size": "512Mi"}},
        "tiers": {"memory": {"size": "1Gi"}},
        "readiness": {"targetPercent": 100},
        "loading": {"mode": "Always"},  # so that what is loaded can be counted
        "agent": {"resources": {"requests": {"cpu": "50m"}}},
    },
}


def manifest() -> str:
    """The engine's Deployment and the ordinary Service in front of it, as their user would write them."""
    environment, model = prepared("engine"), prepared("model")
    python = str(environment / "bin" / "python")
    asked = subprocess.run([python, "-c", "import sys; print(sys.base_prefix)"], stdout=subprocess.PIPE, check=True)
    mounts = {
        "environment": str(environment),
        "model": str(model),
        "interpreter": asked.stdout.decode().strip(),
    }
    variables = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "LD_LIBRARY_PATH": LIBRARY_DIR,
    }
    command = [
        *(python, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", MODEL_NAME, "--port", str(PORT)),
        *("--dtype", "float32", "--max-model-len", "2048", "--block-size", "32"),
        *("--kv-cache-memory-bytes", "268435456", "--enforce-eager"),
    ]
    engine = {
        "name": "engine",
        "image": ENGINE_IMAGE,
        "command": command,
        "workingDir": WORK_DIR,
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "ports": [{"containerPort": PORT}],
        "resources": {"requests": {"cpu": "200m", "memory": "1Gi"}},
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": PORT},
            "periodSeconds": 2,
            "timeoutSeconds": 20,
            "failureThreshold": 30,
        },
        "volumeMounts": [
            *({"name": name, "mountPath": path, "readOnly": True} for name, path in mounts.items()),
            {"name": "library", "mountPath": f"{LIBRARY_DIR}/{SYSTEM_LIBRARY}", "readOnly": True},
            {"name": "work", "mountPath": WORK_DIR},
        ],
    }
    template = {
        "metadata": {"labels": {"app": NAME, "kvpool.io/pool": NAME}},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "containers": [engine],
            "volumes": [
                *({"name": name, "hostPath": {"path": path, "type": "Directory"}} for name, path in mounts.items()),
                {"name": "library", "hostPath": {"path": str(system_library()), "type": "File"}},
                {"name": "work", "emptyDir": {}},
            ],
        },
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": NAME}}, "template": template},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME},
        "spec": {"selector": {"app": NAME}, "ports": [{"port": 80, "targetPort": PORT}]},
    }
    return yaml.safe_dump_all([service, deployment])


def system_library() -> Path:
    known = subprocess.run(["/sbin/ldconfig", "-p"], stdout=subprocess.PIPE, text=True, check=True).stdout
    found = [line.rpartition(" => ")[2] for line in known.splitlines() if line.split()[:1] == [SYSTEM_LIBRARY]]
    assert found, f"{SYSTEM_LIBRARY} is not installed (Debian: apt-get install libnuma1)"
    return Path(found[0]).resolve()


def kvpool(*arguments: str, code: int = 0) -> str:
    """Output of the `kvpool` command, which must end with this code."""
    paths = f"{REPOSITORY / 'agent'}:{REPOSITORY / 'operator'}"
    command = [sys.executable, "-m", "kvpool_cli", *arguments]
    done = subprocess.run(command, env={"PYTHONPATH": paths}, capture_output=True, text=True, timeout=180)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Member:
    """One pod of the pool, asked directly; for its agent's status through the API server."""

    pod: Pod
    kube: Kube

    def get(self, port: int, path: str) -> bytes:
        connection = http.client.HTTPConnection(self.pod.address, port, timeout=ANSWER_SECONDS)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
            if response.status != http.client.OK:
                raise OSError(f"{path}: {response.status}")
            return body
        except http.client.HTTPException as error:
            raise OSError(f"{path}: {error!r}") from None
        finally:
            connection.close()

    def status(self) -> AgentStatus:
        settings = self.kube.core.api_client.configuration
        return decode_status(forward.get(settings, self.kube.namespace, self.pod.name, "/status", ANSWER_SECONDS))

    def metric(self, name: str, port: int = PORT, **labels: str) -> float:
        """Sum over the label sets that have `labels` of what the engine tells, or who else listens at the port."""
        text = self.get(port, "/metrics").decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def pool_tokens(self) -> int:
        """Prompt tokens that the engine took from kvpool."""
        return int(self.metric("vllm:prompt_tokens_cached_by_source_total", source="p2p"))

    def requests(self) -> int:
        """Requests that the engine has finished."""
        return int(self.metric("vllm:request_success_total"))

    def complete(self, prompt: list[int]) -> str:
        return complete(self.pod.address, PORT, prompt)

    def told_blocks(self) -> int:
        """Blocks of which its agent tells others: of several cache namespaces those of the default one."""
        status = self.status()
        return status.cache_namespaces[0].blocks if status.cache_namespaces else status.arena.blocks

    def wait_for_blocks(self, holder: "Member", blocks: int) -> None:
        """Until this member sees `holder` as it is now, with at least `blocks` blocks: what it can find by then."""

        def look() -> bool:
            held = holder.told_blocks()
            seen = [peer.blocks for peer in self.status().peers if peer.member == holder.pod.uid and peer.live]
            return held >= blocks and seen == [held]

        wait_for(f"{self.pod.name} sees {blocks} blocks at {holder.pod.name}", look, 60)

    def wait_for_heads(self, holder: "Member") -> None:
        """Until this member's agent knows the beginnings of as many chains as `holder` does, and has told its engine:
        before, that may take a prompt for one that nobody has."""

        def look() -> bool:
            known, told = self.status().directory, holder.status().directory
            if not (known.head_filter and told.head_filter):
                return True
            return known.heads == told.heads and known.heads_told >= known.heads_number

        wait_for(f"{self.pod.name} knows what {holder.pod.name} has told", look, 60)


def complete(host: str, port: int, prompt: list[int]) -> str:
    """Text of a completion of four tokens; raises OSError for anything but success."""
    body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 4, "temperature": 0}
    connection = http.client.HTTPConnection(host, port, timeout=REQUEST_SECONDS)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        if response.status != http.client.OK:
            raise OSError(f"completion: {response.status} {answer[:300]!r}")
        text: str = json.loads(answer)["choices"][0]["text"]
        return text
    except http.client.HTTPException as error:
        raise OSError(f"completion: {error!r}") from None
    finally:
        connection.close()


def prompt(seed: int, tokens: int) -> list[int]:
    """Token ids that no other seed shares a prefix with."""
    draw = random.Random(seed)
    return [draw.randrange(1000, 40000) for _ in range(tokens)]


def whole_blocks(tokens: int) -> int:
    """Tokens of the whole blocks of a prompt: what can be shared of it."""
    return tokens // BLOCK_TOKENS * BLOCK_TOKENS


class Engines:
    """The Deployment under test."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube

    def deploy(self) -> None:
        self.kube.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(POOL))
        self.kube.kubectl("apply", "-f", "-", stdin=manifest())

    def remove(self) -> None:
        """Returns when no engine is known any more. By force, since a node may be dead."""
        self.kube.kubectl("delete", f"deployment/{NAME}", f"service/{NAME}", f"kvp/{NAME}")

        def none_left() -> bool:
            self.kube.kubectl("delete", "pods", "-l", SELECTOR, "--ignore-not-found", "--grace-period=0", "--force")
            return not self.kube.core.list_namespaced_pod("default").items

        wait_for("no engine is left", none_left, 60)

    def members(self) -> list[Member]:
        return [Member(pod, self.kube) for pod in self.kube.pods(SELECTOR)]

    def grow_to(self, count: int) -> list[Member]:
        """At least `count` ready members, the oldest first."""
        if len(self.members()) < count:
            self.kube.scale(NAME, count)
        return self.wait_ready(count)

    def wait_ready(self, count: int) -> list[Member]:
        def look() -> list[Member]:
            members = self.members()
            restarted = [member.pod.name for member in members if member.pod.restarts]
            assert not restarted, f"containers of {restarted} have ended"
            return members if len(members) >= count and all(m.pod.ready for m in members) else []

        return wait_for(f"{count} ready pods", look, START_SECONDS)
