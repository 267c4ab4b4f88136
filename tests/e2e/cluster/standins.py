"""Pools of stand-in engines: real pods with real agents, injected by the installed webhook, ready in seconds."""

import http.client
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from standin_engine import prompt

from cluster.engines import Member
from cluster.images import ENGINE_IMAGE, STANDIN
from cluster.kube import AGENT, Kube, wait_for
from cluster.provider import Provided

NAME, SELECTOR = "chat", "app=chat"
PORT = 8000
READY_SECONDS = 240
SMALL = {
    "engine": {"hostPool": {"size": "2Mi"}},
    "tiers": {"memory": {"size": "32Mi"}},
    "readiness": {"targetPercent": 100},
    "agent": {"resources": {"requests": {"cpu": "20m"}}},
}


@dataclass(frozen=True)
class Served:
    """Blocks of one request by where they came from; every byte was compared. `first_token`: when that came, as the
    stand-in engine tells it."""

    computed: int = 0
    host: int = 0
    pool: int = 0
    first_token: float = field(default=0.0, compare=False)


def ask(host: str, tokens: list[int], port: int = PORT, tenant: str = "") -> Served:
    """tenant: whose the request says it is; nobody's where it says nothing. Raises OSError for anything but success."""
    claim = {"kv_transfer_params": {"kvpool_cache_namespace": tenant}} if tenant else {}
    counts = _post(host, port, {"prompt": tokens, **claim})
    assert counts["equal"], "a byte that was loaded is not what would have been computed"
    return Served(counts["computed"], counts["host"], counts["pool"], counts["first_token"])


def wait_known(member: Member, tokens: list[int]) -> None:
    """Until its engine does not take the prompt for one that nobody knows: its agent tells it a moment after it has
    learnt of it itself, which on a busy machine is later than the next request."""
    asked = {"prompt": tokens, "known": True}
    wait_for("the prompt is known", lambda: _post(member.pod.address, PORT, asked)["known"], 60, 0.05)


def wait_can_load(member: Member, tokens: list[int]) -> None:
    """Until its engine was compared with others and knows of the prompt."""
    wait_probed([member], "alone", "same")
    wait_known(member, tokens)


def _post(host: str, port: int, body: dict[str, Any]) -> dict[str, Any]:
    connection = http.client.HTTPConnection(host, port, timeout=60)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body))
        response = connection.getresponse()
        answer = response.read()
        if response.status != http.client.OK:
            raise OSError(f"completion: {response.status} {answer[:300]!r}")
    except http.client.HTTPException as error:
        raise OSError(f"completion: {error!r}") from None
    finally:
        connection.close()
    said: dict[str, Any] = json.loads(answer)
    return said


# a node that has died gives its pods up soon
TOLERATIONS = [
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3}
    for taint in ("unreachable", "not-ready")
]


OVER_NODES = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "DoNotSchedule",
    "nodeTaintsPolicy": "Honor",  # of nodes that are left
    "labelSelector": {"matchLabels": {"app": NAME}},
}


def deployment(
    replicas: int = 2,
    model: str = "m",
    annotations: dict[str, str] | None = None,
    tolerations: Sequence[dict[str, Any]] = TOLERATIONS,
    spread: bool = False,
) -> dict[str, Any]:
    """As a user writes it, with the label. spread: over all nodes that take pods."""
    engine = {
        "name": "engine",
        "image": ENGINE_IMAGE,
        "command": list(STANDIN),
        "args": ["--model", model],
        "resources": {"requests": {"cpu": "20m"}},
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": PORT},
            "periodSeconds": 1,
            "timeoutSeconds": 10,
            "failureThreshold": 10,
        },
    }
    template = {
        "metadata": {"labels": {"app": NAME, "kvpool.io/pool": NAME}, "annotations": annotations or {}},
        "spec": {
            "terminationGracePeriodSeconds": 20,
            "containers": [engine],
            "tolerations": list(tolerations),
            "topologySpreadConstraints": [OVER_NODES] if spread else [],
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME},
        "spec": {
            "replicas": replicas,
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "selector": {"matchLabels": {"app": NAME}},
            "template": template,
        },
    }


def pod(name: str, annotations: dict[str, str] | None = None, **labels: str) -> dict[str, Any]:
    """One that no Deployment makes, with these labels besides."""
    template = deployment(annotations=annotations)["spec"]["template"]
    metadata = template["metadata"]
    metadata = {**metadata, "name": name, "labels": {**metadata["labels"], **labels}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


class StandIns(Kube):
    """The pool `chat` in a namespace of its own, with its Deployment and its Service."""

    def __init__(self, provided: Provided, namespace: str) -> None:
        super().__init__(provided, namespace)
        self.kubectl("create", "namespace", namespace)

    def remove(self) -> None:
        """By force, since a node may be dead."""
        self.kubectl("delete", "deployment,kvp,service", "--all", "--wait=false")
        self.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")
        self.kubectl("delete", "namespace", self.namespace, "--wait=false")

    def create(self, replicas: int = 2, pool_spec: dict[str, Any] | None = None, **changes: Any) -> list[Member]:
        """The pool with ready replicas."""
        self.declare(pool_spec)
        self.apply(replicas, **changes)
        return self.wait_ready(replicas)

    def declare(self, pool_spec: dict[str, Any] | None = None) -> None:
        """The pool and its Service."""
        spec = {**SMALL, **(pool_spec or {})}
        pool = {"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": {"name": NAME}, "spec": spec}
        ports = [{"port": 80, "targetPort": PORT}]
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME}}
        self._apply(pool, service | {"spec": {"selector": {"app": NAME}, "ports": ports}})

    def apply(self, replicas: int = 2, **changes: Any) -> None:
        """The Deployment with these changes of its template."""
        self._apply(deployment(replicas, **changes))

    def _apply(self, *documents: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))

    def members(self) -> list[Member]:
        return [Member(pod, self) for pod in self.pods(SELECTOR)]

    def wait_ready(self, count: int, without: "set[str] | frozenset[str]" = frozenset()) -> list[Member]:
        """So many living pods, all ready, none of these names."""

        def look() -> list[Member] | None:
            members = self.members()
            names = {member.pod.name for member in members}
            assert not any(member.pod.restarts for member in members), self.report(SELECTOR)
            if len(members) == count and not names & without and all(m.pod.ready for m in members):
                return members
            raise ValueError([(m.pod.name, m.pod.ready) for m in members])

        return wait_for(f"{count} ready pods", look, READY_SECONDS)

    def heat(self, name: str, blocks: int = 8) -> list[int]:
        """A prompt that every replica has been asked, and one of them has computed."""
        first, *others = self.members()
        wait_probed([first, *others], "alone", "same")
        tokens = prompt(name, blocks)
        assert ask(first.pod.address, tokens) == Served(computed=blocks)
        wait_for("its blocks", lambda: first.status().arena.blocks >= blocks, 60)
        for other in others:
            other.wait_for_blocks(first, first.status().arena.blocks)
            wait_known(other, tokens)
            assert ask(other.pod.address, tokens) == Served(pool=blocks)
        for member in self.members():
            wait_for("the account", lambda m=member: sum_blocks(m) >= blocks, 60)
        return tokens

    def set_pool(self, spec: dict[str, Any]) -> None:
        """Changes these fields of the pool."""
        self.kubectl("patch", "kvp", NAME, "--type=merge", "-p", json.dumps({"spec": spec}))

    def wait_condition(self, kind: str, reason: str) -> dict[str, Any]:
        """The condition of the pool once it has this reason."""

        def look() -> dict[str, Any] | None:
            told = self.condition(kind)
            if told.get("reason") == reason:
                return told
            raise ValueError(told)

        return wait_for(f"{kind} {reason}", look, READY_SECONDS)

    def condition(self, kind: str) -> dict[str, Any]:
        """As the pool's status has it now; empty where it has none."""
        found: list[dict[str, Any]] = self.pool_status().get("conditions", [])
        return next((c for c in found if c["type"] == kind), {})

    def pool_status(self) -> dict[str, Any]:
        found = self.custom.get_namespaced_custom_object(*self._pools, NAME)
        status: dict[str, Any] = found.get("status", {})
        return status

    def wait_status(self, **wanted: object) -> dict[str, Any]:
        """The pool's status once these fields are so."""

        def look() -> dict[str, Any] | None:
            status = self.pool_status()
            if {field: status.get(field) for field in wanted} == wanted:
                return status
            raise ValueError(status)

        return wait_for(f"{wanted}", look, READY_SECONDS)

    def containers(self) -> dict[str, list[str]]:
        """Names of the init containers of each living pod: empty where it is bare."""
        listed = json.loads(self.kubectl("get", "pods", "-l", SELECTOR, "-o", "json").stdout)["items"]
        living = [pod for pod in listed if "deletionTimestamp" not in pod["metadata"]]
        return {pod["metadata"]["name"]: [c["name"] for c in pod["spec"].get("initContainers", [])] for pod in living}

    def agent_images(self) -> dict[str, str]:
        """Of each living pod, as its spec says."""
        listed = self.core.list_namespaced_pod(self.namespace, label_selector=SELECTOR).items
        living = [pod for pod in listed if pod.metadata.deletion_timestamp is None]
        return {p.metadata.name: c.image for p in living for c in p.spec.init_containers if c.name == AGENT}

    def wait_new_pods(self, image: str) -> None:
        """Until a pod that is made gets this agent."""

        def look() -> bool:
            template = self.deployment(NAME)["spec"]["template"]
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": "dry"}}
            made = self.dry_pod(pod | {"spec": template["spec"]})["spec"].get("initContainers", [])
            found = [c["image"] for c in made if c["name"] == AGENT]
            if found != [image]:
                raise ValueError(found)
            return True

        wait_for(f"new pods have {image}", look, 60)


def share(holder: Member, others: Sequence[Member], name: str, blocks: int) -> list[int]:
    """A prompt that one computes and all others load from it, to the byte."""
    wait_probed([holder, *others], "alone", "same")
    tokens, held = prompt(name, blocks), holder.told_blocks()
    assert ask(holder.pod.address, tokens) == Served(computed=blocks)
    wait_for("its blocks", lambda: holder.told_blocks() >= held + blocks, 60)
    for other in others:
        other.wait_for_blocks(holder, held + blocks)
        wait_known(other, tokens)
        assert ask(other.pod.address, tokens) == Served(pool=blocks)
    return tokens


def wait_probed(members: Sequence[Member], *states: str) -> None:
    """Until every member's engine has been compared with others: before that it takes nothing from them."""

    def look() -> bool:
        found = [member.status().probe.state for member in members]
        if all(state in states for state in found):
            return True
        raise ValueError(found)

    wait_for(f"probes that are {states}", look, 60)


def sum_blocks(member: Member) -> int:
    hits = member.status().hits
    return hits.computed_blocks + hits.local_blocks + hits.shared_blocks
