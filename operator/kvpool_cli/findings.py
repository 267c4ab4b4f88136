"""What `kvpool check` says, decided from objects that were read before: of a cluster, of a pool, of a pod.

A finding is a sentence; one that is not well has the fix in it. What could not be read, for want of a right, is said as
such: it is neither good nor bad.
"""

import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from kvpool_cli.members import Answer
from kvpool_contract.names import ORIGINALS_ANNOTATION, POOL_LABEL, SKIPPED_ANNOTATION
from kvpool_contract.reasons import explain
from kvpool_operator.desired.links import unreached
from kvpool_operator.desired.pods import living
from kvpool_operator.desired.pool import PoolError, PoolSpec, read_stored_pool
from kvpool_operator.desired.status import NOTHING_TO_DO, UNREACHABLE
from kvpool_operator.inject import Settings, Skip, inject
from kvpool_operator.inject.obstacles import SIDECARS_SINCE

Document = Mapping[str, Any]
SOON_DAYS = 14


@dataclass(frozen=True)
class Finding:
    verdict: Literal["ok", "problem", "unknown"]
    sentence: str

    def __str__(self) -> str:
        return f"{self.verdict:8} {self.sentence}"


def ok(sentence: str) -> Finding:
    return Finding("ok", sentence)


def problem(sentence: str) -> Finding:
    return Finding("problem", sentence)


def unknown(what: str, why: str) -> Finding:
    return Finding("unknown", f"{what} can't be read ({why}); ask somebody who may, or for the right to.")


@dataclass(frozen=True)
class Denied:
    """In place of an object: why it could not be read."""

    why: str


@dataclass(frozen=True)
class ClusterFacts:
    """Objects as the API server gives them, None where there is none. `tried`: a labelled pod of an unknown pool as
    admission gives it back, or why it did not."""

    version: Document
    nodes: Sequence[Document] | Denied
    definition: Document | Denied | None
    registration: Document | Denied | None
    webhook_slices: Sequence[Document] | Denied
    deployments: Sequence[Document] | Denied
    tried: Document | Denied


def of_cluster(facts: ClusterFacts, now: float) -> Iterator[Finding]:
    """Whether pods could join. now: seconds since 1970."""
    yield _of_version(facts.version)
    yield _of_nodes(facts.nodes)
    yield _of_definition(facts.definition)
    yield from _of_registration(facts.registration, now)
    yield _of_slices(facts.webhook_slices)
    yield _of_controller(facts.deployments)
    yield _of_trial(facts.tried)


def of_pool(pool: Document, pods: Sequence[Document], answers: Sequence[Answer], now: float) -> Iterator[Finding]:
    """Whether a pool is sound, and why its members are not warm."""
    name = pool["metadata"]["name"]
    try:
        read_stored_pool(pool)
    except PoolError as error:
        yield problem(f"{error}.")
    status = pool.get("status") or {}
    if status.get("observedGeneration") != pool["metadata"].get("generation"):
        yield problem(
            "The controller has not looked at the pool as it is now. Wait some seconds; if it stays so, see "
            "`kvpool check` for the controller."
        )
    for condition in status.get("conditions") or []:
        say = ok if condition["status"] == "True" else problem
        yield say(f"{condition['type']}: {condition['message']}")
    found = living([dict(pod) for pod in pods])
    if not found:
        yield problem(f"No pod carries the label {POOL_LABEL}={name}. Add it to the pod template of the engines.")
    by_name = {answer.member: answer for answer in answers}
    for pod in found:
        if pod.injected and pod.name in by_name:
            yield of_member(pod.name, by_name[pod.name])
    names = {a.status.member: a.member for a in answers if a.status is not None}
    for one, other in unreached([a.status for a in answers if a.status is not None], now):
        yield problem(f"{names[one]} does not reach {names[other]}. {explain('members_apart')}")


def of_member(name: str, answer: Answer) -> Finding:
    """Whether an agent is as it should be, and why not."""
    status = answer.status
    if status is None:
        return problem(f"{name}: {explain(UNREACHABLE)} ({answer.error})")
    warm = f"{status.warm.loaded_blocks} of {status.warm.planned_blocks} blocks of the hot set"
    if status.state in ("Starting", "Warming"):
        engine = "the engine is attached" if status.attached else "its engine has not attached yet"
        wait = "Wait until readiness.deadlineSeconds are over; with readiness.onDeadline Block, over without a block."
        return problem(f"{name}: {status.state}, {warm}; {engine}. {wait}")
    say = ok if status.reason in NOTHING_TO_DO and status.attached else problem
    reason = f" {explain(status.reason)}" if status.reason else ""
    return say(f"{name}: {status.state}, {warm}.{reason}")


def of_pod(
    pod: Document, pool: Document | None, registration: Document | Denied | None, answer: Answer | None
) -> Iterator[Finding]:
    """Why a pod has no agent, or is not warm."""
    metadata = pod["metadata"]
    name, labels, annotations = metadata["name"], metadata.get("labels") or {}, metadata.get("annotations") or {}
    wanted = labels.get(POOL_LABEL)
    if not wanted:
        yield problem(f"{name} carries no label {POOL_LABEL}. Add it to the pod template of its workload.")
        return
    if ORIGINALS_ANNOTATION in annotations:
        yield ok(f"{name} has an agent of pool {wanted}.")
        if answer is not None:
            yield of_member(name, answer)
        return
    if word := annotations.get(SKIPPED_ANNOTATION):
        yield problem(f"{name} was let go without an agent. {explain(word)}")
    else:
        yield problem(f"{name} was never looked at. {_never_looked_at(metadata['namespace'], registration)}")
    yield _of_another_try(pod, pool, wanted)


def _never_looked_at(k8s_namespace: str, registration: Document | Denied | None) -> str:
    if registration is None:
        return "The cluster has no webhook of kvpool; install the chart, then make the pod anew."
    if not isinstance(registration, Denied) and not all(
        _sees(each, k8s_namespace) for each in registration["webhooks"]
    ):
        return (
            f"Namespace {k8s_namespace} is left out by webhook.excludedNamespaces or controller.namespaces of the "
            f"chart; change that value, then make the pod anew."
        )
    return explain("not_injected")


def _sees(webhook: Document, k8s_namespace: str) -> bool:
    """By the namespace's name, which is what the chart selects by."""
    for each in (webhook.get("namespaceSelector") or {}).get("matchExpressions") or []:
        if each["key"] == "kubernetes.io/metadata.name" and (k8s_namespace in each["values"]) != (
            each["operator"] == "In"
        ):
            return False
    return True


def _of_another_try(pod: Document, pool: Document | None, wanted: str) -> Finding:
    """What would come of the pod if it were made now."""
    if pool is None:
        return problem(f"Made anew it would start bare. {explain('pool_unknown')} (pool {wanted})")
    try:
        result = inject({"metadata": pod["metadata"], "spec": pod["spec"]}, read_stored_pool(pool), Settings("any"))
    except PoolError as error:
        return problem(f"Made anew it would start bare: {error}.")
    if isinstance(result, Skip):
        return problem(f"Made anew it would start bare. {explain(result.reason)}")
    return ok(f"Made anew it would join pool {wanted}, with container {result.engine} as the engine.")


def _of_version(version: Document) -> Finding:
    found = _version(f"{version.get('major', '')}.{version.get('minor', '')}")
    said = f"The API server is {version.get('gitVersion', '?')}."
    if found >= SIDECARS_SINCE:
        return ok(said)
    return problem(f"{said} The agent is a native sidecar, which needs 1.29. Update the cluster.")


def _of_nodes(nodes: Sequence[Document] | Denied) -> Finding:
    if isinstance(nodes, Denied):
        return unknown("The nodes", nodes.why)
    old = [
        f"{node['metadata']['name']} ({node['status']['nodeInfo']['kubeletVersion']})"
        for node in nodes
        if _version(node["status"]["nodeInfo"]["kubeletVersion"]) < SIDECARS_SINCE
    ]
    if old:
        return problem(
            f"{len(old)} of {len(nodes)} nodes are older than Kubernetes 1.29: {', '.join(old[:3])}. Raise them to it, "
            f"or keep labelled pods off them."
        )
    return ok(f"All {len(nodes)} nodes know native sidecars.")


def _of_definition(definition: Document | Denied | None) -> Finding:
    if isinstance(definition, Denied):
        return unknown("The definition of KVCachePool", definition.why)
    if definition is None:
        return problem("The API server does not know KVCachePool. Install the chart, or apply crds/.")
    (version,) = (v for v in definition["spec"]["versions"] if v["storage"])
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    if missing := list(_missing(spec, PoolSpec, "spec")):
        fields = ", ".join(missing[:5])
        return problem(f"The definition of KVCachePool is older than this command: it lacks {fields}. Apply crds/.")
    return ok("The definition of KVCachePool has every field that this command knows.")


def _missing(schema: Document, shape: Any, path: str) -> Iterator[str]:
    for field in msgspec.structs.fields(shape):
        inner = f"{path}.{field.encode_name}"
        found = schema.get("properties", {}).get(field.encode_name)
        if found is None:
            yield inner
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _missing(found, field.type, inner)


def _of_registration(registration: Document | Denied | None, now: float) -> Iterator[Finding]:
    if isinstance(registration, Denied):
        yield unknown("The webhook's registration", registration.why)
        return
    if registration is None:
        yield problem("The API server asks no webhook of kvpool about pods. Install the chart.")
        return
    for bundle in sorted({webhook["clientConfig"].get("caBundle") or "" for webhook in registration["webhooks"]}):
        yield _of_bundle(bundle, now)


def _of_bundle(bundle: str, now: float) -> Finding:
    if not bundle:
        return problem(
            "The API server trusts no certificate of the webhook (caBundle is empty). See the controller's log, or "
            "cert-manager's."
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=msgspec.json.decode(f'"{bundle}"', type=bytes).decode())
        ends = [ssl.cert_time_to_seconds(str(each["notAfter"])) for each in context.get_ca_certs()]
    except (ValueError, ssl.SSLError, msgspec.DecodeError) as error:
        return problem(f"The webhook's caBundle can't be read ({error}). Delete it; the controller writes it anew.")
    days = int((max(ends, default=0) - now) / 86400)
    until = time.strftime("%Y-%m-%d", time.gmtime(max(ends, default=0)))
    if days < SOON_DAYS:
        return problem(
            f"The authority of the webhook's certificate ends on {until}, in {days} days, and nothing has renewed it. "
            f"See the controller's log, or cert-manager's."
        )
    return ok(f"The authority of the webhook's certificate is valid until {until}.")


def _of_slices(slices: Sequence[Document] | Denied) -> Finding:
    if isinstance(slices, Denied):
        return unknown("The webhook's endpoints", slices.why)
    ready = sum(bool((e.get("conditions") or {}).get("ready")) for s in slices for e in s.get("endpoints") or [])
    if not ready:
        return problem("No webhook is ready: labelled pods start bare. See the webhook's pods and their Events.")
    return ok(f"{ready} webhooks are ready." if ready > 1 else "One webhook is ready; two or more are safer.")


def _of_controller(deployments: Sequence[Document] | Denied) -> Finding:
    if isinstance(deployments, Denied):
        return unknown("The controller's Deployment", deployments.why)
    if not any((d.get("status") or {}).get("readyReplicas") for d in deployments):
        return problem(
            "No controller is ready: new pools get no configuration and no status. See its pod, its Events and its log."
        )
    return ok("The controller is ready.")


def _of_trial(tried: Document | Denied) -> Finding:
    if isinstance(tried, Denied):
        return unknown("What becomes of a labelled pod", tried.why)
    if SKIPPED_ANNOTATION in (tried["metadata"].get("annotations") or {}):
        return ok("The webhook is asked about labelled pods, and answers.")
    namespace = tried["metadata"].get("namespace", "")
    return problem(
        f"A labelled pod in namespace {namespace} is not looked at: the webhook does not answer the API server in "
        f"time, or the chart leaves the namespace out. See the API server's log for inject.kvpool.io, and the chart's "
        f"values."
    )


def _version(text: str) -> tuple[int, int]:
    parts = text.lstrip("v").split(".")[:2]
    numbers = ["".join(c for c in part if c.isdigit()) for part in parts]
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 and all(numbers) else (0, 0)
